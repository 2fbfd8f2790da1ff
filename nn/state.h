/* SPDX-License-Identifier: Apache-2.0 */
/* State: named tensors, in memory and in safetensors files.
 *
 * Names are PyTorch's for the same layers ("up.weight"), and independent of the
 * number of ranks. A tensor that has several names (tied weights, shared
 * modules) is kept once; its further names are aliases. */
#ifndef TREK_NN_STATE_H
#define TREK_NN_STATE_H

#include "nn/module.h"

TREK_BEGIN

/* An ordered list of named tensors, with texts beside it. Owned by the caller. */
typedef struct trek_state trek_state;

TREK_API trek_state *trek_state_new(void); /* empty; NULL and MEMORY */
TREK_API void trek_state_free(trek_state **state); /* NULL is fine; sets NULL */
/* Adds a tensor (retained, not copied). ARGUMENT for a name that is taken, empty or not UTF-8. */
TREK_API trek_status trek_state_add(trek_state *state, const char *name, trek_tensor *tensor);
/* One more name for the tensor called `name`. */
TREK_API trek_status trek_state_add_alias(trek_state *state, const char *alias, const char *name);
/* A text that is stored with the tensors (replaces an earlier one). Keys that begin "trek." are trek's own. */
TREK_API trek_status trek_state_set_text(trek_state *state, const char *key, const char *text);
TREK_API const char *trek_state_text(const trek_state *state, const char *key); /* borrowed; NULL: none */

TREK_API int trek_state_count(const trek_state *state); /* tensors, aliases not counted */
TREK_API const char *trek_state_name(const trek_state *state, int k); /* of tensor k, from 0; borrowed; NULL: none */
TREK_API trek_tensor *trek_state_tensor(const trek_state *state, int k);              /* borrowed */
TREK_API trek_tensor *trek_state_find(const trek_state *state, const char *name);     /* by name or alias; borrowed; NULL: none */
/* What tensor k is, without reading it. dtype and shape may be NULL. */
TREK_API trek_status trek_state_describe(const trek_state *state, int k, trek_dtype *dtype, trek_shape *shape);
/* Tensors of the file that trek has no dtype for (F8_E4M3, I16, U16 ...), which were passed over: how many, and their names
 * with the format's name of their dtype (borrowed; dtype may be NULL). Applying the state fails only where one is needed. */
TREK_API int trek_state_skipped_count(const trek_state *state);
TREK_API const char *trek_state_skipped_name(const trek_state *state, int k, const char **dtype);

/* Copies of all parameters and buffers, on the CPU. */
TREK_API trek_state *trek_state_of(trek_module *module);

/* --- names by rules --------------------------------------------------------- */

/* What another program calls a tensor, and how it lays it out. In patterns "*" stands for any characters but dots (also for
 * none),
 * "**" for any characters; `to` has the same wildcards in the same order, at most eight, each of which becomes what it stood for:
 *
 *     static const trek_state_rule gpt2[] = {
 *         { .from = "transformer.h.*.attn.c_attn.weight", .to = "h.*.attention.qkv.weight", .transpose = true },
 *         { .from = "**.attn.bias" },               // dropped
 *         { .from = "transformer.**", .to = "**" },             // a prefix less
 *         { .from = "**.qkv.weight", .to = "**.query.weight", .parts = 3, .part = 0, .dim = 0 },
 *         { .from = "**.qkv.weight", .to = "**.key.weight", .parts = 3, .part = 1, .dim = 0 }, ...
 *     };
 *
 * The first rule whose `from` fits a name counts, with those of the same `from` where it takes a part; other names stay. */
typedef struct trek_state_rule {
    const char *from;
    const char *to;           /* NULL: the tensor is dropped */
    bool transpose;           /* the last two dimensions are exchanged (after a part was taken) */
    int parts, part, dim;     /* part number `part` of `parts` equal ones along dim, which may count from the end; 0: the whole */
} trek_state_rule;

/* A new state with the names that rules give, over the same tensors: views, and what is still in a file stays there.
 * ARGUMENT: a bad rule, two tensors that get one name, a tensor that has no such part or cannot be transposed. */
TREK_API trek_state *trek_state_rename(const trek_state *state, const trek_state_rule *rules, int n_rules);
/* The reverse: from names of `to` to those of `from`, parts joined (copies). What rules drop does not come back, and where
 * several give one name the first is undone. ARGUMENT: parts that are missing or do not fit each other. */
TREK_API trek_state *trek_state_restore_names(const trek_state *state, const trek_state_rule *rules, int n_rules);

/* --- into a module ----------------------------------------------------------- */

/* What loading found. */
typedef struct trek_state_report {
    int loaded;               /* parameters and buffers that have a tensor in the state */
    int missing;              /* those that have none */
    int unexpected;           /* tensors of the state that the module has no place for */
    int differing;            /* those whose shape or dtype differs */
    char text[1024];          /* the names, "" if there is nothing to tell; long lists are cut */
    int skipped;              /* tensors that trek has no dtype for and the module no need of */
    int assigned;             /* of those loaded: whose memory the module has taken over */
} trek_state_report;

/* All strict by default. */
typedef struct trek_state_load_opts {
    bool allow_missing;       /* leave what the state has no tensor for */
    bool allow_unexpected;    /* pass over what the module has no place for */
    bool cast;                /* convert floating dtypes into each other, and integers into each other */
    /* load_state_dict(assign=True): the module's tensors take over the state's memory instead of copying it, where
     * dtype and layout are the same, both live on the CPU, the tensor is a page or more, and nobody else looks at the module's
     * memory (views, an optimizer's or replicas' arena: load before those are made); else they are copied. A state
     * that lives on then shares memory with the module. */
    bool assign;
    bool map, verify;         /* of reading: as in trek_state_read_opts */
    const trek_state_rule *rules; /* the state is renamed by them first; NULL: it is not */
    int n_rules;
} trek_state_load_opts;

/* Copies the state into the module's tensors, wherever they live. Of a checkpoint (distributed/checkpoint.h, and the
 * best.safetensors of a run) what is not the model's own is passed over; and where it calls all tensors NAME.REST and the module
 * has no NAME, as it is with a module that trek_fit has trained ("model."), and no rules are given, they are taken as REST. All
 * names, shapes and dtypes are checked first; what is missing, unexpected or different is listed in one message (ARGUMENT), and
 * then nothing has changed. UNSUPPORTED: the module needs a tensor that was skipped. opts and report may be NULL. */
TREK_API trek_status trek_state_apply(const trek_state *state, trek_module *module);
TREK_API trek_status trek_state_apply_with(const trek_state *state, trek_module *module, const trek_state_load_opts *opts,
                                           trek_state_report *report);

/* A safetensors file, with checksums of its header and of each tensor in its metadata (XXH64, the text "trek.checksum";
 * a program that changes the file should drop that text). It is written beside `path`, synced and renamed: a failed
 * or interrupted write (IO, with the system's reason) leaves what was there. */
TREK_API trek_status trek_state_write(const trek_state *state, const char *path);
/* The same in several files in a folder (IO: it is not there), as Hugging Face's programs write and read them: in order, each
 * with at most max_bytes bytes of tensors (but for a larger tensor, which has one for itself): model-00001-of-00003.safetensors
 * ... and model.safetensors.index.json, or model.safetensors alone if one is enough. Each is replaced as a whole, the index last,
 * and those of an earlier state in the folder, which are none of this one's, are removed then. A write that is interrupted among
 * files which replace others of the same names leaves some of either: to be safe from that, write into a new folder. ARGUMENT:
 * max_bytes is 0. */
TREK_API trek_status trek_state_write_shards(const trek_state *state, const char *folder, uint64_t max_bytes);

typedef struct trek_state_read_opts {
    /* A tensor is read when it is first asked for, or written elsewhere; the state has its file open until then, and is used by
     * one thread at a time. */
    bool lazy;
    /* Tensors are the file's own memory, mapped (private: what is written to them changes no file), which lives as long as
     * one of them. No byte is read before it is needed; where the file lies badly (elements that are not at a multiple of
     * their size) it is copied. Checksums of tensors are compared only if `verify` says so: it reads them all, or with `lazy`
     * each when it is asked for. The file must not be changed in its place meanwhile: one that is cut short ends the program
     * with SIGBUS. trek's own writers never do that, they replace files. */
    bool map, verify;
} trek_state_read_opts;

/* A safetensors file; an index of several (NAME.json), whose files lie beside it; or a folder that holds model.safetensors or
 * else model.safetensors.index.json. FORMAT for anything but well-formed files: nothing in them is trusted; a tensor that
 * its file lacks or two have. A file with checksums is compared with them, one without (others write those) is read as
 * it is. Tensors of dtypes that trek does not have are skipped. */
TREK_API trek_state *trek_state_read(const char *path);
TREK_API trek_state *trek_state_read_with(const char *path, const trek_state_read_opts *opts); /* opts may be NULL */

/* How a module is saved. */
typedef struct trek_state_save_opts {
    uint64_t max_shard_bytes; /* 0: one file; else path is a folder, and trek_state_write_shards writes it */
    const trek_state_rule *rules; /* those of loading, which are undone (trek_state_restore_names); NULL: none */
    int n_rules;
} trek_state_save_opts;

/* The module's parameters and buffers to a file and back. What has several names (tied weights) is one tensor under its owner's
 * name, and the others are aliases, which other programs do not read. But where the module, or one inside it, was loaded from a
 * state that had tensors of its own under others of these names, or under several, those names have tensors here, too. */
TREK_API trek_status trek_state_save(trek_module *module, const char *path);
TREK_API trek_status trek_state_save_with(trek_module *module, const char *path, const trek_state_save_opts *opts);
TREK_API trek_status trek_state_load(trek_module *module, const char *path, trek_state_report *report);
TREK_API trek_status trek_state_load_with(trek_module *module, const char *path, const trek_state_load_opts *opts,
                                          trek_state_report *report);

TREK_END

#endif
