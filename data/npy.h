/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's files: .npy, one array, and .npz, a zip archive of several (numpy.lib.format, versions 1 to 3). */
#ifndef TREK_DATA_NPY_H
#define TREK_DATA_NPY_H

#include "data/dataset.h"

TREK_BEGIN

/* A new tensor in host memory, row-major, whatever the file's order of bytes and elements is. float16, 32 and 64, int32 and 64,
 * uint8 and bool keep their types; int8, int16 and uint16 become i32, uint32 i64. NULL and IO; FORMAT (damaged, cut off, longer
 * than its header says, more than 8 dimensions); DTYPE for types that trek has not (uint64, complex, text, records); MEMORY. */
TREK_API trek_tensor *trek_npy_read(const char *path);
/* Row-major, from any device; there is the whole file or the earlier one. DTYPE for bf16, which NumPy does not know; IO, MEMORY.
 */
TREK_API trek_status trek_npy_write(const char *path, trek_tensor *tensor);

/* An open archive. Used by one thread at a time. */
typedef struct trek_npz trek_npz;

/* UNSUPPORTED where the library was built without zlib; IO; FORMAT for what is no zip archive, or one of a kind that NumPy does
 * not write (encrypted, of several volumes, packed other than by deflate); MEMORY. */
TREK_API trek_npz *trek_npz_open(const char *path);
TREK_API void trek_npz_close(trek_npz **npz); /* NULL is fine */
TREK_API int trek_npz_count(const trek_npz *npz); /* -1 and an error for NULL */
/* Array k's name, without .npy; lives as long as npz. NULL if there is none. */
TREK_API const char *trek_npz_name(const trek_npz *npz, int k);
/* As trek_npy_read; ARGUMENT, listing the names, if there is no such array; FORMAT, too, if its checksum is another. */
TREK_API trek_tensor *trek_npz_read(trek_npz *npz, const char *name);
/* Tensors as numpy.savez writes them, or with compress as savez_compressed. ARGUMENT for a missing or empty name, or one that
 * occurs twice; as trek_npy_write. */
TREK_API trek_status trek_npz_write(const char *path, const char *const *names, trek_tensor *const *tensors, int n,
                                    bool compress);

/* The arrays of an archive as fields, in its order: sample i is row i of each. Held in memory. As the above, and SHAPE unless all
 * have the same first dimension. */
TREK_API trek_dataset *trek_dataset_npz(const char *path);

TREK_END

#endif
