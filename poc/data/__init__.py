"""Images in, batches out: CIFAR-10, photos, arrays, synthetic images; augmentation, shards, prefetching."""

from poc.data.batches import Batch, prefetch, training_batches, validation_batches
from poc.data.images import Crops, Dataset, Images, Pixels, device_images
from poc.data.own import count
from poc.data.sources import find, identify, load
