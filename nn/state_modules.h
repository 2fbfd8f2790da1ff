/* SPDX-License-Identifier: Apache-2.0 */
/* States of modules and files of them, with all options. The rules of nn/state.h apply. */
#ifndef TREK_NN_STATE_MODULES_H
#define TREK_NN_STATE_MODULES_H

#include "nn/state_tensors.h"

TREK_BEGIN

/* Returns a state with copies of all parameters and buffers of the module, on the CPU. Returns NULL on failure. */
TREK_API trek_state *trek_state_of(trek_module *module);

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

/* Writes the module, as trek_state_save does, with options. opts may be NULL.
 * Errors: those of trek_state_write, trek_state_write_shards and trek_state_restore_names. */
TREK_API trek_status trek_state_save_with(trek_module *module, const char *path, const trek_state_save_opts *opts);

/* Reads a file into the module, as trek_state_load does, with options. opts and report may be NULL. */
TREK_API trek_status trek_state_load_with(trek_module *module, const char *path, const trek_state_load_opts *opts,
                                          trek_state_report *report);

TREK_END

#endif
