"""Images in, batches out: CIFAR-10, ImageNet from RecordIO, synthetic images; augmentation, shards, prefetching."""

from poc.data.batches import Batch, prefetch, training_batches, validation_batches
from poc.data.images import Dataset, Images, Pixels, Views, held
from poc.data.sources import at_hand, cifar10_at_hand, identify, load
