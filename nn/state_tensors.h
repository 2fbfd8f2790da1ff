/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a state: adding, finding and renaming them. The rules of nn/state.h apply. */
#ifndef TREK_NN_STATE_TENSORS_H
#define TREK_NN_STATE_TENSORS_H

#include "nn/state.h"

TREK_BEGIN

/* Returns an empty state, or NULL on failure. */
TREK_API trek_state *trek_state_new(void);

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

TREK_END

#endif
