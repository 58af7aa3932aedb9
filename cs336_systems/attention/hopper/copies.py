"""Gluon's functions under their current names: Triton 3.8 renamed the copies and 3.9 reinterpret."""

from triton.experimental.gluon.language import shared_memory_descriptor
from triton.experimental.gluon.language.nvidia.hopper import tma

async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
store_wait = tma.store_wait
reinterpret = getattr(shared_memory_descriptor, "reinterpret", None) or shared_memory_descriptor._reinterpret
