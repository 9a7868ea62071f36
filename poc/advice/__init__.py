"""Advice on a recipe: throughput, time and cost on more devices, from short runs or a published speed."""
