"""Images in, batches out: CIFAR-10, ImageNet from RecordIO, synthetic images; augmentation, shards, prefetching."""

from poc.data.batches import Batch, prefetch, training_batches, validation_batches
from poc.data.images import Crops, Dataset, Images, Pixels, device_images
from poc.data.sources import find, identify, load
