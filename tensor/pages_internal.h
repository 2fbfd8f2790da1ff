/* SPDX-License-Identifier: Apache-2.0 */
/* What pages consist of, and how those on a host go into a file and out of it. */
#ifndef TREK_TENSOR_PAGES_INTERNAL_H
#define TREK_TENSOR_PAGES_INTERNAL_H

#include "tensor/device_pages.h"
#include "tensor/pages.h"
#include "tensor/spare_pages.h"

enum page_state { ABSENT, TAKEN, HELD };

/* SEAM: the system knows a stretch of memory that begins here. AWAY: the page does not lie in the file. */
enum page_mark { SEAM = 1, AWAY = 2 };

struct trek_pages {
    char *memory;
    const struct trek_device_pages *backend; /* NULL: the system's, on a CPU */
    trek_device_range *range;    /* of the backend */
    size_t bytes, size;          /* of all pages; of one */
    int64_t taken;               /* pages that have memory */
    struct trek_block_cache *user; /* who has it */
    const trek_pages_keeper *keeper; /* NULL: what is absent is zero */
    trek_pages_keeper taker;     /* who takes what ops are about to use, on a device */
    bool guarded;                /* what is absent cannot be read */
    int file;                    /* which others have mapped, too; -1: none */
    size_t offset;               /* in it */
    trek_spare_pages spare;      /* what was given back, for what is taken next */
    uint8_t *marks;              /* [pages + 1] page_mark */
    uint8_t state[];             /* [pages] page_state, before the marks */
};

/* Returns whether page k lies in the file. */
static inline bool trek_pages_in_file(const trek_pages *pages, size_t k) { return pages->file >= 0 && !(pages->marks[k] & AWAY); }

/* Returns addresses for so many bytes, without memory; NULL: the system has none. */
void *trek_pages_reserve(size_t bytes);
/* Notes that pages [first, end) are one stretch to the system, and (AWAY, or 0) where they lie. */
void trek_pages_mark(const trek_pages *pages, size_t first, size_t end, uint8_t away);
/* Takes pages [first, end) out of the file, in which they have no memory. */
void trek_pages_leave_file(const trek_pages *pages, size_t first, size_t end);
/* Puts those of pages [first, end) that have left it back into the file, with what they contain. Fails with MEMORY. */
trek_status trek_pages_return_to_file(const trek_pages *pages, size_t first, size_t end);

#endif
