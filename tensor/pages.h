/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors whose memory is taken and given back in pieces, while their addresses stay. Elements whose memory has been
 * given back are zeros and may be read, which takes nothing. Before elements are written, their memory has to be taken, so that
 * it is counted (memory_account.h); the system does not insist on that.
 *
 * On a GPU (device_pages.h) addresses without memory cannot be read. Ops take what they are about to read or write by themselves;
 * whoever uses the address otherwise takes it before. Taking makes zeros, in the order of the stream of the thread that has made
 * the tensor. It counts in the GPU's own numbers (trek_memory_usage).
 *
 * Pages may have a keeper, who has the elements that are absent. Then only ops can read the tensor, which ask for what
 * they read.
 *
 * Memory comes and goes in pages of the system, or of the driver. One thread at a time may call these functions for a tensor. */
#ifndef TREK_TENSOR_PAGES_H
#define TREK_TENSOR_PAGES_H

#include <stdatomic.h>

#include "tensor/tensor_internal.h"

typedef struct trek_pages trek_pages;

/* Returns a tensor of zeros that has no memory yet, which will count for the calling thread. Returns NULL with MEMORY, or with
 * DEVICE if the device has no pages. */
trek_tensor *trek_pages_zeros(trek_shape shape, trek_dtype dtype, trek_device device);
/* Returns the pages in which a tensor lies, or NULL if it lies in other memory. */
trek_pages *trek_pages_of(const trek_tensor *tensor);
/* Returns the size of a page in bytes, or 0 if the device has none; why (may be NULL) gets the reason. */
size_t trek_pages_size(trek_device device, char *why, size_t n);

/* Takes the memory of the bytes from an address on. Fails with MEMORY if the account of the thread that has it may have no
 * more, or if a GPU has no more. */
trek_status trek_pages_take(trek_pages *pages, const void *from, size_t bytes);
/* Takes it whatever the account may have. In a file it lies in the file from then on. It fails on GPUs, and with MEMORY if the
 * file has none. */
trek_status trek_pages_take_surely(trek_pages *pages, const void *from, size_t bytes);
/* Does that, and holds it: giving back makes zeros of it. */
trek_status trek_pages_hold(trek_pages *pages, const void *from, size_t bytes);
/* Ends all holding. */
void trek_pages_release_holds(trek_pages *pages);
/* Makes zeros of the bytes, and gives back the memory of pages that have no others. */
void trek_pages_give_back(trek_pages *pages, void *from, size_t bytes);
/* From now on, of the memory that is given back up to so many bytes stay, for what is taken next. They count as if they were
 * taken. 0, as at the beginning: none, and what has stayed goes back to the system. On a GPU it does nothing, since its driver's
 * memory is used again anyway. */
void trek_pages_keep_spare(trek_pages *pages, size_t bytes);
/* Returns how many bytes have memory; without what was given back. */
int64_t trek_pages_taken(const trek_pages *pages);
/* Finds the next stretch of bytes that have memory, from offset *begin on: [*begin, *end). Returns false if there is none. */
bool trek_pages_next(const trek_pages *pages, size_t *begin, size_t *end);

/* Moves the pages to a file of memory, from `offset` on, which is a multiple of a page: who has mapped it, too, sees what they
 * contain, and what is written to them later; of pages that trek_pages_take takes while some memory stays
 * (trek_pages_keep_spare), only after they are taken surely, or held. Addresses stay. What has no memory has none in the file, as
 * long as nobody reads it. fd is borrowed until trek_pages_unshare, or as long as the tensor exists. Fails with MEMORY; then
 * nothing has changed. Called while nobody uses the tensor. */
trek_status trek_pages_share(trek_pages *pages, int fd, size_t offset);
/* Makes the pages this process's own again, with the same contents. The file keeps what it has. The same errors. */
trek_status trek_pages_unshare(trek_pages *pages);
/* Returns the number of bytes of all pages. */
size_t trek_pages_bytes(const trek_pages *pages);
/* Returns where the first one begins. */
char *trek_pages_memory(const trek_pages *pages);

/* Who has what the pages of a tensor lack, and must see that it is written. `read` and `write` are called before an op reads or
 * writes bytes [from, from + bytes), by any thread. What an op reads has to stay until `leave`, which is called when the op is
 * over and one of them was called for it. use: a number that no other op has. */
typedef struct trek_pages_keeper {
    trek_status (*read)(void *arg, const void *from, size_t bytes, uint64_t use, bool first);
    trek_status (*write)(void *arg, const void *from, size_t bytes, uint64_t use, bool first);
    void (*leave)(void *arg);
    void *arg;
} trek_pages_keeper;
/* Sets the keeper of pages, borrowed; NULL: none, as at the beginning on a CPU. With a keeper and TREK_DEBUG=1
 * (trek_pages_guard), the system stops a program that reads what has no memory. Called while nobody uses the tensor. */
void trek_pages_set_keeper(trek_pages *pages, const trek_pages_keeper *keeper);
extern bool trek_pages_guard;
/* How many pages have keepers. */
extern atomic_int trek_pages_kept;

enum { TREK_PAGES_KEEPERS = 8 };
/* Whom an op has asked. Ops that run within it ask themselves. */
typedef struct trek_pages_op {
    uint64_t use;
    int n;
    const trek_pages_keeper *of[TREK_PAGES_KEEPERS];
} trek_pages_op;

struct trek_op_call;
/* Asks for what an op reads and writes. own: stays until trek_pages_end_op, which follows in any case. */
trek_status trek_pages_begin_op(trek_pages_op *own, const struct trek_op_call *call);
void trek_pages_end_op(const trek_pages_op *own);
/* Returns whether a tensor lies in pages with a keeper, or on a GPU and something of it has no memory. Then only ops can read it,
 * for example trek_tensor_clone. */
bool trek_tensor_is_kept(const trek_tensor *tensor);
/* Returns the tensor itself, or a copy if it is kept: with row-major elements in memory that can be read. NULL: MEMORY, or what
 * the keeper says. */
trek_tensor *trek_tensor_readable(trek_tensor *tensor);

/* Takes the memory of a contiguous tensor that may lie in pages. */
static inline trek_status trek_tensor_take_pages(const trek_tensor *tensor)
{
    trek_pages *pages = trek_pages_of(tensor);
    return pages ? trek_pages_take(pages, tensor->data, (size_t)tensor->numel * trek_item_size[tensor->dtype]) : TREK_OK;
}

#endif
