/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses on a device whose memory comes and goes: a table by which a backend offers them to tensor/pages.h. Everything
 * happens in the order of one stream, that of the thread that has reserved the addresses. So memory can be used by other pages as
 * soon as it was given back, without waiting for the device. It is plain C that C++ accepts. */
#ifndef TREK_TENSOR_DEVICE_PAGES_H
#define TREK_TENSOR_DEVICE_PAGES_H

#include "tensor/backend.h"

TREK_BEGIN

typedef struct trek_device_range trek_device_range;

typedef struct trek_device_pages {
    /* Returns the size of a page in bytes, or 0 if the device has none; why (may be NULL) gets the reason. */
    size_t (*size)(trek_device device, char *why, size_t n);
    /* Reserves addresses for n pages that have no memory. guarded: pages that were given back cannot be read; for that the
     * host waits for the device. Fails with DEVICE or MEMORY. */
    trek_status (*reserve)(trek_device device, size_t n, bool guarded, trek_device_range **range, void **data);
    /* Waits for the device. */
    void (*release)(trek_device_range *range);
    /* Gives pages [first, end), which have none, memory that contains zeros. Fails with MEMORY, or with STATE while work is
     * recorded; then they have none. */
    trek_status (*take)(trek_device_range *range, size_t first, size_t end);
    /* Gives back the memory of pages [first, end), which have some. What other streams do with it must come before in the order
     * of the stream. */
    void (*give_back)(trek_device_range *range, size_t first, size_t end);
    /* Makes zeros of bytes [begin, end), which have memory. */
    void (*clear)(trek_device_range *range, size_t begin, size_t end);
} trek_device_pages;

TREK_END

#endif
