/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors format: 8 bytes header length (little-endian), a JSON header
 * {"name": {"dtype", "shape", "data_offsets"}, "__metadata__": {...}}, padded
 * with spaces so that the data begins 64-byte aligned, then the data, row-major
 * and little-endian, without gaps. Internal: trek_state_write and _read are the doors.
 *
 * Aliases stand in the metadata as a JSON text, "trek.aliases": {"alias": "name"}.
 *
 * A file of trek's carries checksums in its metadata: "trek.checksum":"trek-xxh64 H T0 T1 ...", each of 16 hexadecimal
 * digits. T0, T1, ... are of the tensors' bytes, in the order of the data; H is of the length and the whole header
 * with zeros in H's own place. What others write has none, and is read without. */
#ifndef TREK_NN_SAFETENSORS_H
#define TREK_NN_SAFETENSORS_H

#include "nn/state_internal.h"
#include "nn/text.h"

#define TREK_SAFETENSORS_MAX_HEADER 100000000 /* the format's own bound */
#define TREK_SAFETENSORS_PART (1u << 20)      /* what is read or written, and summed up, at a time */
#define TREK_SAFETENSORS_ALIASES "trek.aliases"
#define TREK_SAFETENSORS_CHECKSUM "trek.checksum"

/* What trek_state_write writes, into an empty file that is open; name is for messages. */
trek_status trek_state_write_file(const trek_state *state, int file, const char *name);

/* Writes them all. IO. */
trek_status trek_safetensors_write_bytes(int file, const void *data, uint64_t bytes, uint64_t offset, const char *path);

/* The format's name of a dtype. */
const char *trek_safetensors_dtype(trek_dtype dtype);

/* Where a tensor's bytes lie, as the header says. */
typedef struct trek_safetensors_item {
    char *name;
    char other[16];           /* the name of a dtype that trek does not have, else "" */
    trek_dtype dtype;
    trek_shape shape;
    uint64_t begin, end;
} trek_safetensors_item;

typedef struct trek_safetensors_header {
    trek_safetensors_item *items;
    int n_items, cap_items;
} trek_safetensors_header;

/* Parses and checks a header of `length` bytes over `data_bytes` bytes of data.
 * Metadata goes into `state` (aliases excepted, which are left in its texts);
 * items come back in the order of their data. `path` is for messages.
 * What was made is in *header even on failure. */
trek_status trek_safetensors_parse(const char *text, size_t length, uint64_t data_bytes, const char *path,
                                   trek_safetensors_header *header, trek_state *state);
void trek_safetensors_header_clear(trek_safetensors_header *header);
/* Forgets a text that is the file's own affair. */
void trek_safetensors_drop_text(trek_state *state, const char *key);
/* Adds the aliases that the text "trek.aliases" lists, and drops the text. */
trek_status trek_safetensors_read_aliases(trek_state *state, const char *path);

/* Where a header of `length` bytes has the digits of its own checksum, followed by " " and 16 digits for each tensor
 * and '"'; NULL: it has none. */
char *trek_safetensors_seal(char *header, size_t length);
/* The checksum H of a header whose digits are at `seal`. They are zeros afterwards. */
uint64_t trek_safetensors_header_checksum(char *header, size_t length, char *seal);
/* What a checksum text begins with. */
#define TREK_SAFETENSORS_SEAL "trek-xxh64 "

/* Adds all that a file has to a state: tensors, which stay in the file, aliases, texts. */
trek_status trek_safetensors_add_file(trek_state *state, const char *path, const trek_state_read_opts *opts);

/* The names that Hugging Face's programs give them: one file, or files of which the index tells who has what. */
#define TREK_SAFETENSORS_MODEL "model.safetensors"
#define TREK_SAFETENSORS_INDEX "model.safetensors.index.json"
/* A string in JSON, quotes included. */
void trek_json_string(trek_text *out, const char *string);

#endif
