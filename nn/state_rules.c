/* SPDX-License-Identifier: Apache-2.0 */
/* Renaming by rules: other programs' names of tensors, and their layouts. */
#include <string.h>

#include "nn/state_internal.h"
#include "nn/text.h"
#include "tensor/copies.h"
#include "tensor/layout.h"
#include "tensor/memory_internal.h"
#include "tensor/shapes.h"
#include "tensor/status_internal.h"

enum { WILDCARDS = 8 };

typedef struct run {
    const char *from;
    size_t length;
} run;

/* --- patterns ------------------------------------------------------------------------ */

typedef struct wildcard {
    const char *pattern;      /* what follows the wildcard */
    int number;               /* the first is 0; -1 if there is none yet */
} wildcard;

/* Lets a wildcard take one more character. Returns false if it cannot. */
static bool stretch(const wildcard *w, bool over_dots, run *runs, const char **pattern, const char **name)
{
    if (w->number < 0)
        return false;
    run *r = &runs[w->number];
    char next = r->from[r->length];
    if (next == 0 || (next == '.' && !over_dots))
        return false;
    r->length++;
    *pattern = w->pattern;
    *name = r->from + r->length;
    return true;
}

/* Each wildcard takes as little as it can. Where the rest does not fit, the last "*" takes more, and where that would
 * be a dot, the last "**". Earlier wildcards need not be tried again, because that would only make the later ones
 * begin further on. */
static bool matches(const char *pattern, const char *name, run *runs)
{
    wildcard star = { .number = -1 }, stars = { .number = -1 };
    int count = 0;
    while (*pattern || *name) {
        bool both = pattern[0] == '*' && pattern[1] == '*';
        if (*pattern == '*') {
            pattern += both ? 2 : 1;
            runs[count] = (run){ name, 0 };
            if (both) {
                stars = (wildcard){ pattern, count };
                star.number = -1;
            } else {
                star = (wildcard){ pattern, count };
            }
            count++;
        } else if (*pattern && *pattern == *name) {
            pattern++;
            name++;
        } else if (stretch(&star, false, runs, &pattern, &name)) {
            count = star.number + 1;
        } else if (stretch(&stars, true, runs, &pattern, &name)) {
            count = stars.number + 1;
            star.number = -1;
        } else {
            return false;
        }
    }
    return true;
}

/* Returns a new string: `to` with the text that the wildcards matched. */
static char *substitute(const char *to, const run *runs)
{
    trek_text text = { 0 };
    int k = 0;
    while (*to) {
        size_t plain = strcspn(to, "*");
        trek_text_bytes(&text, to, plain);
        to += plain;
        if (*to != '*')
            continue;
        trek_text_bytes(&text, runs[k].from, runs[k].length);
        k++;
        to += to[1] == '*' ? 2 : 1;
    }
    return trek_text_take(&text);
}

/* --- rules ------------------------------------------------------------------------------ */

/* Writes the kinds of wildcards in order, as letters. */
static bool wildcards(const char *pattern, char kinds[WILDCARDS + 1])
{
    int n = 0;
    for (const char *p = strchr(pattern, '*'); p; p = strchr(p, '*')) {
        if (n == WILDCARDS)
            return false;
        bool both = p[1] == '*';
        kinds[n++] = both ? 'b' : 'a';
        p += both ? 2 : 1;
    }
    kinds[n] = 0;
    return true;
}

static trek_status check_rule(const trek_state_rule *rule, int k)
{
    char from[WILDCARDS + 1], to[WILDCARDS + 1];
    if (!rule->from || !*rule->from)
        return trek_fail(TREK_ERR_ARGUMENT, "state: rule %d: no pattern; it must have one", k);
    if (!wildcards(rule->from, from) || (rule->to && (!wildcards(rule->to, to) || strcmp(from, to) != 0)))
        return trek_fail(TREK_ERR_ARGUMENT, "state: rule %d: \"%s\" and \"%s\" must have the same wildcards, at most %d of them",
                         k, rule->from, rule->to ? rule->to : "", WILDCARDS);
    if (rule->parts < 0 || (rule->parts > 0 && (!rule->to || rule->part < 0 || rule->part >= rule->parts)))
        return trek_fail(TREK_ERR_ARGUMENT, "state: rule %d: part %d of %d does not exist", k, rule->part, rule->parts);
    return TREK_OK;
}

static trek_status check_rules(const trek_state_rule *rules, int n)
{
    if (n < 0 || (n > 0 && !rules))
        return trek_fail_missing("state_rename", "rules");
    for (int k = 0; k < n; k++) {
        trek_status status = check_rule(&rules[k], k);
        if (status != TREK_OK)
            return status;
    }
    return TREK_OK;
}

/* Returns the first rule from `k` on that matches this name, or n if none does. */
static int find_rule(const trek_state_rule *rules, int n, int k, const char *name, run *runs)
{
    while (k < n && !matches(rules[k].from, name, runs))
        k++;
    return k;
}

typedef struct renaming {
    const trek_state *from;
    trek_state *to;
    const trek_state_rule *rules;
    int n;
    int *first;               /* [entries of from] the entry of `to` that it became unchanged, or -1 */
} renaming;

static trek_status add(renaming *r, int entry, const char *name, const trek_state_change *change)
{
    const trek_state_entry *e = &r->from->entries[entry];
    trek_shape shape = trek_state_entry_shape(e);
    trek_status status = trek_state_change_shape(&shape, change, e->name);
    bool whole = trek_state_change_is_none(change);
    if (status == TREK_OK && whole && r->first[entry] >= 0)
        return trek_state_add_alias(r->to, name, r->to->entries[r->first[entry]].name);
    if (status == TREK_OK)
        status = trek_state_add_like(r->to, name, e, change);
    if (status == TREK_OK && whole)
        r->first[entry] = r->to->n_entries - 1;
    return status;
}

/* Adds an entry under the name that the rules give it. */
static trek_status rename_one(renaming *r, int entry, const char *name)
{
    run runs[WILDCARDS];
    int k = find_rule(r->rules, r->n, 0, name, runs);
    if (k == r->n)
        return add(r, entry, name, &(trek_state_change){ 0 });
    const trek_state_rule *first = &r->rules[k];
    trek_status status = TREK_OK;
    for (; first->to && k < r->n && status == TREK_OK; k++) {
        const trek_state_rule *rule = &r->rules[k];
        if (rule != first && (first->parts == 0 || rule->parts == 0 || strcmp(rule->from, first->from) != 0))
            continue;
        char *to = substitute(rule->to, runs);
        trek_state_change change = { .transpose = rule->transpose, .parts = rule->parts, .part = rule->part, .dim = rule->dim };
        status = to ? add(r, entry, to, &change) : TREK_ERR_MEMORY;
        trek_free(to);
    }
    return status;
}

static trek_status rename_skipped(renaming *r, int skipped)
{
    const char *name = r->from->skipped[skipped].key, *dtype = r->from->skipped[skipped].text;
    run runs[WILDCARDS];
    int k = find_rule(r->rules, r->n, 0, name, runs);
    if (k < r->n && !r->rules[k].to)
        return TREK_OK;
    char *to = k < r->n ? substitute(r->rules[k].to, runs) : trek_strdup(name);
    trek_status status = to ? trek_state_add_skipped(r->to, to, dtype) : TREK_ERR_MEMORY;
    trek_free(to);
    return status;
}

static trek_status rename_all(renaming *r)
{
    trek_status status = trek_state_take_metadata(r->to, r->from);
    for (int k = 0; k < r->from->n_entries; k++)
        r->first[k] = -1;
    for (int k = 0; k < r->from->n_entries && status == TREK_OK; k++)
        status = rename_one(r, k, r->from->entries[k].name);
    for (int k = 0; k < r->from->n_aliases && status == TREK_OK; k++)
        status = rename_one(r, r->from->aliases[k].entry, r->from->aliases[k].name);
    for (int k = 0; k < r->from->n_skipped && status == TREK_OK; k++)
        status = rename_skipped(r, k);
    r->to->checked = r->from->checked;
    return status;
}

trek_state *trek_state_rename(const trek_state *state, const trek_state_rule *rules, int n)
{
    if (!state) {
        trek_fail_missing("state_rename", "state");
        return NULL;
    }
    if (check_rules(rules, n) != TREK_OK)
        return NULL;
    renaming r = { .from = state, .to = trek_state_new(), .rules = rules, .n = n };
    r.first = trek_calloc((size_t)state->n_entries + 1, sizeof *r.first);
    trek_status status = r.to && r.first ? rename_all(&r) : TREK_ERR_MEMORY;
    trek_free(r.first);
    if (status != TREK_OK)
        trek_state_free(&r.to);
    return r.to;
}

/* --- backwards ---------------------------------------------------------------------------- */

/* The parts of one tensor, joined side by side, to which the rules give names from what the wildcards matched. `used`
 * tells which of the state's entries went into it. */
typedef struct joining {
    const trek_state *from;
    const trek_state_rule *rules;
    int n;
    bool *used;
} joining;

static trek_tensor *untransposed(trek_tensor *tensor, bool transpose)
{
    return tensor ? trek_state_changed(tensor, &(trek_state_change){ .transpose = transpose }) : NULL;
}

/* Copies a part to its position and undoes its transposition. */
static trek_status put_part(joining *j, const trek_state_rule *rule, const run *runs, trek_tensor *whole)
{
    char *name = substitute(rule->to, runs);
    int entry = name ? trek_state_lookup(j->from, name) : -1;
    trek_tensor *part = entry >= 0 ? trek_state_entry_read(&j->from->entries[entry]) : NULL;
    trek_tensor *turned = untransposed(part, rule->transpose);
    trek_state_change change = { .parts = rule->parts, .part = rule->part, .dim = rule->dim };
    trek_tensor *place = turned ? trek_state_changed(whole, &change) : NULL;
    trek_status status = TREK_OK;
    if (name && entry < 0)
        status = trek_fail(TREK_ERR_ARGUMENT, "state: %s does not exist, which is part %d of what becomes \"%s\"", name,
                           rule->part, rule->from);
    else if (!place)
        status = trek_error_status();
    else if (!trek_shape_equal(trek_tensor_shape(place), trek_tensor_shape(turned)) ||
             trek_tensor_dtype(place) != trek_tensor_dtype(turned))
        status = trek_fail(TREK_ERR_ARGUMENT, "state: %s does not fit the other parts of what becomes \"%s\"", name, rule->from);
    else
        status = trek_tensor_copy_from(place, turned);
    if (entry >= 0)
        j->used[entry] = true;
    trek_tensor_release(place);
    trek_tensor_release(turned);
    trek_tensor_release(part);
    trek_free(name);
    return status;
}

/* Returns the whole of which an entry is the first part. */
static trek_tensor *join(joining *j, const trek_state_rule *rule, const run *runs, trek_tensor *part)
{
    trek_shape shape = trek_tensor_shape(part);
    int dim = rule->dim < 0 ? rule->dim + shape.ndim : rule->dim, put = 0;
    if (dim < 0 || dim >= shape.ndim)
        return trek_fail_null(TREK_ERR_ARGUMENT, "state: \"%s\" cannot be joined along dimension %d", rule->to, rule->dim);
    shape.sizes[dim] *= rule->parts;
    trek_tensor *whole = trek_tensor_zeros(shape, trek_tensor_dtype(part), trek_tensor_device(part));
    trek_status status = whole ? TREK_OK : trek_error_status();
    for (int k = 0; k < j->n && status == TREK_OK; k++) {
        const trek_state_rule *other = &j->rules[k];
        if (other->parts != rule->parts || strcmp(other->from, rule->from) != 0)
            continue;
        status = put_part(j, other, runs, whole);
        put++;
    }
    if (status == TREK_OK && put != rule->parts)
        status = trek_fail(TREK_ERR_ARGUMENT, "state: \"%s\" has %d of its %d parts in the rules", rule->from, put, rule->parts);
    if (status == TREK_OK)
        return whole;
    trek_tensor_release(whole);
    return NULL;
}

/* Returns the first rule that produced this name, or n if none did. */
static int find_reverse(const joining *j, const char *name, run *runs)
{
    int k = 0;
    while (k < j->n && !(j->rules[k].to && matches(j->rules[k].to, name, runs)))
        k++;
    return k;
}

static trek_status restore_one(joining *j, int entry, trek_state *to)
{
    run runs[WILDCARDS];
    const trek_state_entry *e = &j->from->entries[entry];
    int k = find_reverse(j, e->name, runs);
    if (k == j->n)
        return trek_state_add_like(to, e->name, e, &(trek_state_change){ 0 });
    const trek_state_rule *rule = &j->rules[k];
    char *name = substitute(rule->from, runs);
    trek_status status = name ? TREK_OK : TREK_ERR_MEMORY;
    if (status == TREK_OK && rule->parts == 0) {
        status = trek_state_add_like(to, name, e, &(trek_state_change){ .transpose = rule->transpose });
    } else if (status == TREK_OK) {
        trek_tensor *part = trek_state_entry_read(e), *turned = untransposed(part, rule->transpose);
        trek_tensor *whole = turned ? join(j, rule, runs, turned) : NULL;
        status = whole ? trek_state_add(to, name, whole) : trek_error_status();
        trek_tensor_release(whole);
        trek_tensor_release(turned);
        trek_tensor_release(part);
    }
    trek_free(name);
    return status;
}

static trek_status restore_alias(const joining *j, const trek_state_alias *alias, trek_state *to)
{
    run runs[WILDCARDS], of[WILDCARDS];
    const char *primary = j->from->entries[alias->entry].name;
    int k = find_reverse(j, alias->name, runs), p = find_reverse(j, primary, of);
    if ((k < j->n && j->rules[k].parts > 0) || (p < j->n && j->rules[p].parts > 0))
        return trek_fail(TREK_ERR_ARGUMENT, "state: %s is another name of %s, and one of them a part of a tensor", alias->name,
                         primary);
    char *name = k < j->n ? substitute(j->rules[k].from, runs) : trek_strdup(alias->name);
    char *first = p < j->n ? substitute(j->rules[p].from, of) : trek_strdup(primary);
    bool turned = (k < j->n && j->rules[k].transpose) != (p < j->n && j->rules[p].transpose);
    trek_status status = !name || !first ? TREK_ERR_MEMORY
        : turned                          ? trek_state_add_like(to, name, &j->from->entries[alias->entry],
                                                                &(trek_state_change){ .transpose = k < j->n &&
                                                                                      j->rules[k].transpose })
                                          : trek_state_add_alias(to, name, first);
    trek_free(name);
    trek_free(first);
    return status;
}

trek_state *trek_state_restore_names(const trek_state *state, const trek_state_rule *rules, int n)
{
    if (!state) {
        trek_fail_missing("state_restore_names", "state");
        return NULL;
    }
    if (check_rules(rules, n) != TREK_OK)
        return NULL;
    joining j = { .from = state, .rules = rules, .n = n };
    trek_state *to = trek_state_new();
    j.used = trek_calloc((size_t)state->n_entries + 1, sizeof *j.used);
    trek_status status = to && j.used ? trek_state_take_metadata(to, state) : TREK_ERR_MEMORY;
    for (int k = 0; k < state->n_entries && status == TREK_OK; k++)
        if (!j.used[k])
            status = restore_one(&j, k, to);
    for (int k = 0; k < state->n_aliases && status == TREK_OK; k++)
        status = restore_alias(&j, &state->aliases[k], to);
    trek_free(j.used);
    if (status != TREK_OK)
        trek_state_free(&to);
    return to;
}
