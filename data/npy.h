/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's files: .npy with one array, and .npz, a zip archive of several (numpy.lib.format, versions 1 to 3). */
#ifndef TREK_DATA_NPY_H
#define TREK_DATA_NPY_H

#include "data/dataset.h"

TREK_BEGIN

/* Reads a .npy file as a new tensor in host memory, in row-major order, for any byte order and element order of the file.
 * Dtypes: float16, 32 and 64, int32 and 64, uint8 and bool are kept. int8, int16 and uint16 become i32, uint32 becomes i64.
 * Errors: IO, MEMORY. FORMAT if the file is damaged, cut off, longer than its header says, or has more than 8 dimensions.
 * DTYPE for other types (uint64, complex, text, records). NULL is returned. */
TREK_API trek_tensor *trek_npy_read(const char *path);
/* Writes a tensor, from any device, as a .npy file in row-major order. On failure an earlier file at `path` stays.
 * Errors: DTYPE for bf16, which NumPy does not have. IO, MEMORY. */
TREK_API trek_status trek_npy_write(const char *path, trek_tensor *tensor);

/* An open archive. Only one thread at a time may use it. */
typedef struct trek_npz trek_npz;

/* Opens a .npz file and returns the archive, which the caller closes with trek_npz_close.
 * Errors: UNSUPPORTED if trek was built without zlib. FORMAT if the file is not a zip archive, or of a kind that NumPy does
 * not write (encrypted, several volumes, another compression than deflate). IO, MEMORY. NULL is returned. */
TREK_API trek_npz *trek_npz_open(const char *path);
/* Closes the archive and sets *npz to NULL. NULL is allowed. */
TREK_API void trek_npz_close(trek_npz **npz);
/* Returns the number of arrays. If `npz` is NULL, it returns -1 and sets an error. */
TREK_API int trek_npz_count(const trek_npz *npz);
/* Returns the name of array k, without .npy, or NULL if k is out of range. The string is valid as long as the archive. */
TREK_API const char *trek_npz_name(const trek_npz *npz, int k);
/* Reads an array of the archive as trek_npy_read does.
 * Errors: as trek_npy_read. FORMAT also if the checksum is wrong. ARGUMENT, with a list of the names, if no array has this
 * name. */
TREK_API trek_tensor *trek_npz_read(trek_npz *npz, const char *name);
/* Writes n tensors as a .npz file, as numpy.savez does, or with `compress` as numpy.savez_compressed does.
 * Errors: as trek_npy_write. ARGUMENT if a name is missing or empty or occurs twice. */
TREK_API trek_status trek_npz_write(const char *path, const char *const *names, trek_tensor *const *tensors, int n,
                                    bool compress);

/* Returns a dataset whose fields are the arrays of an archive, in its order: sample i is row i of each array. The arrays are
 * kept in memory.
 * Errors: as trek_npz_open and trek_npz_read. SHAPE unless the sizes of dimension 0 are equal. */
TREK_API trek_dataset *trek_dataset_npz(const char *path);

TREK_END

#endif
