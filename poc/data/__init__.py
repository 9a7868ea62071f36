"""Images in, batches out: CIFAR-10, ImageNet from RecordIO, synthetic images; augmentation, shards, prefetching."""

from poc.data.batches import Batch, Prefetch, training_batches, validation_batches
from poc.data.datasets import Dataset, Views
from poc.data.images import Images, held
from poc.data.sources import load, stand_in
