/* SPDX-License-Identifier: Apache-2.0 */
/* State: named tensors, in memory and in safetensors files.
 *
 * Names are PyTorch's for the same layers ("up.weight") and do not depend on the number of ranks. A tensor that has several names
 * (tied weights, shared modules) is kept once; its further names are aliases.
 *
 * Errors that every function here can report: ARGUMENT if a required argument is NULL, MEMORY if memory runs out. */
#ifndef TREK_NN_STATE_H
#define TREK_NN_STATE_H

#include "nn/module.h"

TREK_BEGIN

/* An ordered list of named tensors, with texts that are stored next to them. The caller owns it. */
typedef struct trek_state trek_state;

/* Returns an empty state, or NULL on failure. */
TREK_API trek_state *trek_state_new(void);

/* Frees the state and releases its tensors. *state may be NULL and is NULL afterwards. */
TREK_API void trek_state_free(trek_state **state);

/* Adds a tensor, which is retained and not copied.
 * Errors: ARGUMENT if the name is taken, empty or not UTF-8. */
TREK_API trek_status trek_state_add(trek_state *state, const char *name, trek_tensor *tensor);

/* Adds another name for the tensor called `name`.
 * Errors: ARGUMENT if no tensor is called `name`, or if the alias is taken, empty or not UTF-8. */
TREK_API trek_status trek_state_add_alias(trek_state *state, const char *alias, const char *name);

/* Stores a text under a key with the tensors, and replaces an earlier text of that key. Keys that begin with "trek." are reserved
 * for trek.
 * Errors: ARGUMENT if the key or the text is not UTF-8. */
TREK_API trek_status trek_state_set_metadata(trek_state *state, const char *key, const char *text);

/* Returns the text that is stored under the key; the state owns it. Returns NULL if no text has this key. */
TREK_API const char *trek_state_metadata(const trek_state *state, const char *key);

/* Returns the number of tensors, without aliases; 0 for NULL. */
TREK_API int trek_state_count(const trek_state *state);

/* Returns the name of tensor k, counted from 0; the state owns the text. Returns NULL with ARGUMENT if k is out of range. */
TREK_API const char *trek_state_name(const trek_state *state, int k);

/* Returns tensor k, borrowed; a lazy state reads it first. Returns NULL on failure, with ARGUMENT if k is out of range. */
TREK_API trek_tensor *trek_state_tensor(const trek_state *state, int k);

/* Returns the tensor with this name or alias, borrowed; a lazy state reads it first. Returns NULL without an error if no tensor
 * has this name. */
TREK_API trek_tensor *trek_state_find(const trek_state *state, const char *name);

/* Writes the dtype and the shape of tensor k without reading the tensor. dtype and shape may be NULL.
 * Errors: ARGUMENT if k is out of range. */
TREK_API trek_status trek_state_describe(const trek_state *state, int k, trek_dtype *dtype, trek_shape *shape);

/* Returns the number of tensors of the file that were skipped because trek does not have their dtype (F8_E4M3, I16, U16 and
 * others). trek_state_apply fails only if the module needs one of them. */
TREK_API int trek_state_skipped_count(const trek_state *state);

/* Returns the name of skipped tensor k and writes the safetensors name of its dtype to *dtype unless dtype is NULL. The state
 * owns both texts. Returns NULL with ARGUMENT if k is out of range. */
TREK_API const char *trek_state_skipped_name(const trek_state *state, int k, const char **dtype);

/* Returns a state with copies of all parameters and buffers of the module, on the CPU. Returns NULL on failure. */
TREK_API trek_state *trek_state_of(trek_module *module);

/* --- names by rules --------------------------------------------------------- */

/* A rule that translates the names and layouts of another program. In the pattern `from`, "*" stands for any number of characters
 * except dots, possibly zero, and "**" for any number of any characters. `to` has the same wildcards in the same order, at most
 * eight. Each of them becomes the text that it matched:
 *
 *     static const trek_state_rule gpt2[] = {
 *         { .from = "transformer.h.*.attn.c_attn.weight", .to = "h.*.attention.qkv.weight", .transpose = true },
 *         { .from = "**.attn.bias" },               // dropped
 *         { .from = "transformer.**", .to = "**" },             // removes the prefix
 *         { .from = "**.qkv.weight", .to = "**.query.weight", .parts = 3, .part = 0, .dim = 0 },
 *         { .from = "**.qkv.weight", .to = "**.key.weight", .parts = 3, .part = 1, .dim = 0 }, ...
 *     };
 *
 * The first rule that matches a name applies, together with the other rules with the same `from` if it takes a part. Names that
 * no rule matches stay as they are. */
typedef struct trek_state_rule {
    const char *from; /* the names that the rule applies to */
    const char *to;   /* the new name; NULL drops the tensor */
    bool transpose;   /* exchanges the last two dimensions, after a part was taken */
    int parts;        /* number of equal parts that the tensor is cut into along dim; 0 takes the whole tensor */
    int part;         /* the part that the rule takes, counted from 0 */
    int dim;          /* the dimension that is cut; negative numbers count from the end */
} trek_state_rule;

/* Returns a new state with the names that the rules give, or NULL on failure. It shares the tensors: transposed tensors and parts
 * are views, and tensors that are still in a file stay there.
 * Errors: ARGUMENT if a rule is malformed, if two tensors get the same name, or if a tensor has no such part or cannot be
 * transposed. */
TREK_API trek_state *trek_state_rename(const trek_state *state, const trek_state_rule *rules, int n_rules);

/* Returns a new state in which the rules are undone: it translates names that match `to` into those of `from`, and joins parts
 * into copies. Tensors that rules drop do not come back. Where several rules give the same name, the first of them is undone.
 * Returns NULL on failure.
 * Errors: ARGUMENT if parts are missing or do not fit together. */
TREK_API trek_state *trek_state_restore_names(const trek_state *state, const trek_state_rule *rules, int n_rules);

/* --- into a module ----------------------------------------------------------- */

/* What trek_state_apply_with and trek_state_load_with found. */
typedef struct trek_state_report {
    int loaded;      /* number of parameters and buffers that have a tensor in the state */
    int missing;     /* number of parameters and buffers that have no tensor in the state */
    int unexpected;  /* number of tensors of the state that the module has no parameter or buffer for */
    int differing;   /* number of tensors whose shape or dtype differs */
    char text[1024]; /* the names of these, cut if the list is long; "" if everything fits */
    int skipped;     /* number of tensors whose dtype trek does not have and which the module does not need */
    int assigned;    /* number of loaded tensors whose memory the module has taken over */
} trek_state_report;

/* Options of trek_state_apply_with and trek_state_load_with. By default names, shapes and dtypes must be equal. */
typedef struct trek_state_load_opts {
    bool allow_missing;    /* leaves parameters and buffers that have no tensor in the state as they are */
    bool allow_unexpected; /* ignores tensors that the module has no parameter or buffer for */
    bool cast;             /* converts floating dtypes into each other, and integer dtypes into each other */
    /* Makes the module take over the state's memory instead of copying it, as load_state_dict(assign=True) in PyTorch; see
     * trek_state_apply_with. */
    bool assign;
    bool map;                     /* for reading: as in trek_state_read_opts */
    bool verify;                  /* for reading: as in trek_state_read_opts */
    const trek_state_rule *rules; /* rules by which the state is renamed first; NULL renames nothing */
    int n_rules;                  /* number of rules */
} trek_state_load_opts;

/* Copies the state into the parameters and buffers of the module, on whatever device they are. All names, shapes and dtypes are
 * checked first.
 *
 * A checkpoint (distributed/checkpoint.h, and the best.safetensors of a run) is treated specially. Only the model's part of it is
 * read. If all its names begin with the same NAME and a dot, the module has no child NAME and no rules are given, the names are
 * used without this beginning. Checkpoints of modules that trek_fit has trained are like this ("model.").
 *
 * Errors: ARGUMENT if tensors are missing, unexpected or different, with one message that lists them. UNSUPPORTED if the module
 * needs a tensor that was skipped. On these errors nothing has changed. */
TREK_API trek_status trek_state_apply(const trek_state *state, trek_module *module);

/* Copies the state into the module, as trek_state_apply does, with options, and writes what it found to *report. opts and report
 * may be NULL.
 *
 * With opts->assign a tensor's memory is taken over instead of copied if dtype and layout are equal, both tensors are on the CPU,
 * the tensor has at least one page, and nothing else uses the module's memory (a view, or the arena of an optimizer or of
 * replicas: load before these are made). Other tensors are copied. A state that is kept then shares memory with the module. */
TREK_API trek_status trek_state_apply_with(const trek_state *state, trek_module *module, const trek_state_load_opts *opts,
                                           trek_state_report *report);

/* Writes the state to a safetensors file. Checksums of the header and of each tensor (XXH64) are stored in its metadata as the
 * text "trek.checksum"; a program that changes the file should remove this text. The file is written under another name in the
 * same folder, synced and renamed, so that a failed or interrupted write leaves the old file intact.
 * Errors: IO with the system's reason. */
TREK_API trek_status trek_state_write(const trek_state *state, const char *path);

/* Writes the state to several files in a folder, as Hugging Face's programs read them: model-00001-of-00003.safetensors and so on
 * with model.safetensors.index.json, or model.safetensors alone if one file is enough. Each file has at most max_bytes bytes of
 * tensors; a larger tensor gets a file of its own.
 *
 * Each file is replaced as a whole, the index last. Then files of an earlier state in the folder that this state does not have
 * are removed. An interrupted write that replaces files of the same names can leave a mixture of both states; to exclude this,
 * write into a new folder.
 * Errors: IO, also if the folder does not exist. ARGUMENT if max_bytes is 0. */
TREK_API trek_status trek_state_write_shards(const trek_state *state, const char *folder, uint64_t max_bytes);

/* Options of trek_state_read_with. */
typedef struct trek_state_read_opts {
    /* Reads a tensor only when it is first used; until then the state keeps its file open. Only one thread at a time may use the
     * state. */
    bool lazy;
    bool map; /* maps the file into memory instead of reading it; see trek_state_read_with */
    /* Compares the checksums of tensors of a mapped file, which reads all of them, or each when it is first used if lazy is
     * set. */
    bool verify;
} trek_state_read_opts;

/* Reads a state from a safetensors file, from an index of several files (NAME.json, whose files are in its folder), or from a
 * folder that holds model.safetensors or, if that is missing, model.safetensors.index.json. Returns NULL on failure. If the file
 * has checksums they are checked; a file without checksums, as other programs write it, is read as it is. Tensors whose dtype
 * trek does not have are skipped.
 * Errors: FORMAT if a file is not well formed, if it lacks a tensor of the index, or if two files have the same tensor. IO. */
TREK_API trek_state *trek_state_read(const char *path);

/* Reads a state, as trek_state_read does, with options. opts may be NULL.
 *
 * With opts->map the tensors use the file's mapped memory, which is released with the last of them. The mapping is private:
 * writing to a tensor does not change the file. Nothing is read before it is used. Tensors whose elements are not aligned in the
 * file are copied. The checksums of tensors are compared only with opts->verify. The file must not be changed in place meanwhile:
 * if it is cut short, the program ends with SIGBUS. trek's own writers replace files and never change them in place. */
TREK_API trek_state *trek_state_read_with(const char *path, const trek_state_read_opts *opts);

/* Options of trek_state_save_with. */
typedef struct trek_state_save_opts {
    uint64_t max_shard_bytes; /* 0 writes one file; otherwise path is a folder, to which trek_state_write_shards writes */
    /* The rules that were used for loading; they are undone (trek_state_restore_names). NULL changes no names. */
    const trek_state_rule *rules;
    int n_rules; /* number of rules */
} trek_state_save_opts;

/* Writes the parameters and buffers of the module to a safetensors file. A tensor that has several names (tied weights) is stored
 * once under its owner's name, and the other names are aliases, which other programs do not read. An exception: if the module, or
 * a module inside it, was loaded from a state that had a separate tensor under one of the other names, that name gets a tensor
 * here, too.
 * Errors: those of trek_state_write. */
TREK_API trek_status trek_state_save(trek_module *module, const char *path);

/* Writes the module, as trek_state_save does, with options. opts may be NULL.
 * Errors: those of trek_state_write, trek_state_write_shards and trek_state_restore_names. */
TREK_API trek_status trek_state_save_with(trek_module *module, const char *path, const trek_state_save_opts *opts);

/* Reads a file as trek_state_read does and copies it into the module as trek_state_apply does. Writes what it found to *report
 * unless report is NULL. */
TREK_API trek_status trek_state_load(trek_module *module, const char *path, trek_state_report *report);

/* Reads a file into the module, as trek_state_load does, with options. opts and report may be NULL. */
TREK_API trek_status trek_state_load_with(trek_module *module, const char *path, const trek_state_load_opts *opts,
                                          trek_state_report *report);

TREK_END

#endif
