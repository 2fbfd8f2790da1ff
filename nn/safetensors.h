/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors format: 8 bytes of header length (little-endian), then a JSON header {"name": {"dtype", "shape",
 * "data_offsets"}, "__metadata__": {...}} padded with spaces so that the data begins 64-byte aligned, then the data,
 * row-major and little-endian, without gaps. trek_state_write and trek_state_read are the public functions.
 *
 * Aliases are in the metadata as a JSON text, "trek.aliases": {"alias": "name"}.
 *
 * Files written by trek carry checksums in the metadata: "trek.checksum":"trek-xxh64 H T0 T1 ...", each of 16
 * hexadecimal digits. T0, T1, ... cover the tensors' bytes, in the order of the data. H covers the length and the
 * whole header, with zeros in H's own place. Files from other programs have no checksums and are read without them. */
#ifndef TREK_NN_SAFETENSORS_H
#define TREK_NN_SAFETENSORS_H

#include "nn/state_internal.h"
#include "nn/text.h"

#define TREK_SAFETENSORS_MAX_HEADER 100000000 /* the format's own limit */
#define TREK_SAFETENSORS_PART (1u << 20)      /* bytes that are read or written, and summed, at a time */
#define TREK_SAFETENSORS_ALIASES "trek.aliases"
#define TREK_SAFETENSORS_CHECKSUM "trek.checksum"

/* Does the writing for trek_state_write, into an open, empty file. `name` is for messages. */
trek_status trek_state_write_file(const trek_state *state, int file, const char *name);

/* A state as the bytes of such a file, which is not written: its head, and behind it the tensors where they are. Tensors on the
 * CPU whose elements lie in one piece are not copied, so that their bytes are those of the moment at which they are read. There
 * are no checksums. */
typedef struct trek_state_part {
    const char *name;         /* the state's */
    trek_tensor *tensor;
    const void *data;
    const void *source;       /* where the state's tensor has its data, perhaps on a device; NULL: it was in a file */
    int64_t begin, bytes;     /* where it is in the file */
} trek_state_part;
typedef struct trek_state_image {
    trek_text head;
    trek_state_part *parts;
    int n;
    int64_t bytes;            /* of the whole file */
} trek_state_image;
/* The state must outlive the image, which has to be cleared even after a failure. */
trek_status trek_state_image_make(trek_state_image *image, const trek_state *state);
void trek_state_image_clear(trek_state_image *image);

/* Writes all bytes. Fails with IO. */
trek_status trek_safetensors_write_bytes(int file, const void *data, uint64_t bytes, uint64_t offset, const char *path);

/* Returns the format's name of a dtype. */
const char *trek_safetensors_dtype(trek_dtype dtype);

/* The position of a tensor's bytes, according to the header. */
typedef struct trek_safetensors_item {
    char *name;
    char other[16];           /* the name of a dtype that trek does not have, or "" */
    trek_dtype dtype;
    trek_shape shape;
    uint64_t begin, end;
} trek_safetensors_item;

typedef struct trek_safetensors_header {
    trek_safetensors_item *items;
    int n_items, cap_items;
} trek_safetensors_header;

/* Parses and checks a header of `length` bytes for `data_bytes` bytes of data. Metadata goes into the texts of
 * `state`, the aliases still as a text. Items are returned in the order of their data. `path` is for messages.
 * *header has to be cleared even after a failure. */
trek_status trek_safetensors_parse(const char *text, size_t length, uint64_t data_bytes, const char *path,
                                   trek_safetensors_header *header, trek_state *state);
void trek_safetensors_header_clear(trek_safetensors_header *header);
/* Removes a text that only concerns the file itself. */
void trek_safetensors_drop_text(trek_state *state, const char *key);
/* Adds the aliases listed by the text "trek.aliases" and removes the text. */
trek_status trek_safetensors_read_aliases(trek_state *state, const char *path);

/* Returns where a header of `length` bytes has the digits of its own checksum, which are followed by " " and 16
 * digits for each tensor, and then '"'. Returns NULL if there are none. */
char *trek_safetensors_seal(char *header, size_t length);
/* Computes the checksum H of a header whose digits are at `seal`. The digits are zeros afterwards. */
uint64_t trek_safetensors_header_checksum(char *header, size_t length, char *seal);
/* The beginning of a checksum text. */
#define TREK_SAFETENSORS_SEAL "trek-xxh64 "

/* Adds everything in a file to a state: tensors (which stay in the file), aliases and texts. */
trek_status trek_safetensors_add_file(trek_state *state, const char *path, const trek_state_read_opts *opts);

/* The file names that Hugging Face's programs use: a single file, or an index that tells which file has which tensor. */
#define TREK_SAFETENSORS_MODEL "model.safetensors"
#define TREK_SAFETENSORS_INDEX "model.safetensors.index.json"

/* Which file has a tensor. */
typedef struct trek_safetensors_place {
    const char *name, *file;
} trek_safetensors_place;
/* Replaces an index by one of n places, which it sorts. total: the bytes of all tensors. Fails with IO or MEMORY; then the
 * earlier index may be in its place, or this one. */
trek_status trek_safetensors_write_index(const char *path, trek_safetensors_place *places, int n, uint64_t total);

#endif
