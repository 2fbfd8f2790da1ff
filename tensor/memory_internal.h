/* SPDX-License-Identifier: Apache-2.0 */
/* Two doors to host memory, both through the replaceable allocator.
 *
 * trek_alloc: long-lived objects and tables; remembers its size.
 * trek_block_alloc: tensor memory, tensor headers, variables, tape nodes:
 * 64-byte aligned blocks in size classes from a cache of the calling thread; a
 * block freed on another thread goes back to its owner's cache. */
#ifndef TREK_TENSOR_MEMORY_INTERNAL_H
#define TREK_TENSOR_MEMORY_INTERNAL_H

#include "tensor/memory.h"

/* 16-byte aligned; NULL and the sticky error TREK_ERR_MEMORY on failure. bytes may be 0. */
void *trek_alloc(size_t bytes);
void *trek_calloc(size_t count, size_t size);              /* overflow-checked, zeroed */
void *trek_realloc(void *memory, size_t bytes);            /* memory may be NULL; on failure it stays valid */
char *trek_strdup(const char *text);
char *trek_format(const char *format, ...) TREK_PRINTF(1, 2); /* a new string */
void trek_free(void *memory);                              /* NULL is fine */

/* 64-byte aligned; NULL and TREK_ERR_MEMORY on failure. Uninitialised. */
void *trek_block_alloc(size_t bytes);
void trek_block_free(void *block);                         /* from any thread; NULL is fine */
size_t trek_block_size(const void *block);                 /* usable bytes */

/* Grows a trek_alloc'ed array so that it holds at least `count` items.
 * array is the address of the pointer, capacity counts items. */
trek_status trek_array_grow(void *array, int *capacity, int count, size_t item);

#endif
