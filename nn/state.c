/* SPDX-License-Identifier: Apache-2.0 */
/* The list of named tensors. */
#include "nn/state.h"

#include <string.h>

#include "nn/state_internal.h"
#include "nn/utf8.h"
#include "tensor/byte_hash.h"
#include "tensor/memory_internal.h"
#include "tensor/pages.h"
#include "tensor/status_internal.h"
#include "tensor/tensor_internal.h"

trek_state *trek_state_new(void) { return trek_calloc(1, sizeof(trek_state)); }

static void free_notes(trek_state_note *notes, int n)
{
    for (int k = 0; k < n; k++) {
        trek_free(notes[k].key);
        trek_free(notes[k].text);
    }
    trek_free(notes);
}

void trek_state_free(trek_state **state)
{
    if (!state || !*state)
        return;
    trek_state *s = *state;
    *state = NULL;
    for (int k = 0; k < s->n_entries; k++) {
        trek_free(s->entries[k].name);
        trek_tensor_release(s->entries[k].tensor);
        trek_state_source_release(s->entries[k].source);
    }
    for (int k = 0; k < s->n_aliases; k++)
        trek_free(s->aliases[k].name);
    free_notes(s->notes, s->n_notes);
    free_notes(s->skipped, s->n_skipped);
    trek_free(s->entries);
    trek_free(s->aliases);
    trek_free(s->slots);
    trek_free(s->skipped_slots);
    trek_free(s);
}

/* --- names ------------------------------------------------------------------ */

static const char *slot_name(const trek_state *s, int slot)
{
    return slot > 0 ? s->entries[slot - 1].name : s->aliases[-slot - 1].name;
}

static const char *skipped_name(const trek_state *s, int slot) { return s->skipped[slot - 1].key; }

/* Returns the slot that holds the name, or the free slot where it belongs (linear probing). */
static int find_slot_of(const trek_state *s, const char *(*name_of)(const trek_state *, int), const int *slots, int n_slots,
                        const char *name)
{
    uint64_t hash = trek_hash_bytes(TREK_HASH_BEGIN, name, strlen(name));
    int mask = n_slots - 1, at = (int)((hash ^ hash >> 32) & (uint64_t)mask);
    while (slots[at] != 0 && strcmp(name_of(s, slots[at]), name) != 0)
        at = (at + 1) & mask;
    return at;
}

static int find_slot(const trek_state *s, const int *slots, int n_slots, const char *name)
{
    return find_slot_of(s, slot_name, slots, n_slots, name);
}

/* Makes room for one more entry in addition to the `used` ones. */
static trek_status reserve(const trek_state *s, const char *(*name_of)(const trek_state *, int), int **slots, int *n_slots,
                           int used)
{
    if (2 * (used + 1) <= *n_slots)
        return TREK_OK;
    int n = *n_slots ? 2 * *n_slots : 64;
    int *more = trek_calloc((size_t)n, sizeof *more);
    if (!more)
        return TREK_ERR_MEMORY;
    for (int k = 0; k < *n_slots; k++)
        if ((*slots)[k] != 0)
            more[find_slot_of(s, name_of, more, n, name_of(s, (*slots)[k]))] = (*slots)[k];
    trek_free(*slots);
    *slots = more;
    *n_slots = n;
    return TREK_OK;
}

static trek_status reserve_slot(trek_state *s)
{
    return reserve(s, slot_name, &s->slots, &s->n_slots, s->n_entries + s->n_aliases);
}

int trek_state_lookup(const trek_state *s, const char *name)
{
    if (s->n_slots == 0)
        return -1;
    int slot = s->slots[find_slot(s, s->slots, s->n_slots, name)];
    return slot > 0 ? slot - 1 : slot < 0 ? s->aliases[-slot - 1].entry : -1;
}

static trek_status check_name(const trek_state *s, const char *name)
{
    if (!name || !*name || strcmp(name, "__metadata__") == 0 || !trek_utf8_valid(name, strlen(name)))
        return trek_fail(TREK_ERR_ARGUMENT,
                         "state: name: not possible; a tensor's name must be UTF-8, not empty and not __metadata__");
    if (trek_state_lookup(s, name) >= 0)
        return trek_fail(TREK_ERR_ARGUMENT, "state: name: \"%s\" is in use already", name);
    return TREK_OK;
}

/* Takes ownership of what the entry refers to, except the name, which is copied; this holds on failure as well. */
static trek_status add_entry(trek_state *s, const char *name, trek_state_entry entry)
{
    trek_status status = check_name(s, name);
    if (status == TREK_OK)
        status = reserve_slot(s);
    if (status == TREK_OK)
        status = trek_array_grow(&s->entries, &s->cap_entries, s->n_entries + 1, sizeof *s->entries);
    entry.name = status == TREK_OK ? trek_strdup(name) : NULL;
    if (!entry.name) {
        trek_tensor_release(entry.tensor);
        trek_state_source_release(entry.source);
        return status == TREK_OK ? TREK_ERR_MEMORY : status;
    }
    s->slots[find_slot(s, s->slots, s->n_slots, name)] = s->n_entries + 1;
    s->entries[s->n_entries++] = entry;
    return TREK_OK;
}

trek_status trek_state_add(trek_state *s, const char *name, trek_tensor *tensor)
{
    if (!s || !tensor)
        return trek_fail_missing("state_add", s ? "tensor" : "state");
    return add_entry(s, name, (trek_state_entry){ .tensor = trek_tensor_retain(tensor) });
}

trek_status trek_state_add_like(trek_state *s, const char *name, const trek_state_entry *like, const trek_state_change *change)
{
    bool again = !trek_state_change_is_none(&like->change) && !trek_state_change_is_none(change);
    if (!like->tensor && !again) { /* stays in its file */
        trek_state_entry entry = *like;
        trek_state_source_retain(entry.source);
        entry.change = trek_state_change_is_none(change) ? like->change : *change;
        return add_entry(s, name, entry);
    }
    trek_tensor *tensor = trek_state_entry_read(like), *changed = tensor ? trek_state_changed(tensor, change) : NULL;
    trek_tensor_release(tensor);
    return changed ? add_entry(s, name, (trek_state_entry){ .tensor = changed }) : trek_error_status();
}

trek_status trek_state_add_alias(trek_state *s, const char *alias, const char *name)
{
    if (!s || !name)
        return trek_fail_missing("state_add_alias", s ? "name" : "state");
    int entry = trek_state_lookup(s, name);
    if (entry < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "state: alias: \"%s\" cannot be a name of \"%s\", which does not exist",
                         alias ? alias : "", name);
    trek_status status = check_name(s, alias);
    if (status == TREK_OK)
        status = reserve_slot(s);
    if (status == TREK_OK)
        status = trek_array_grow(&s->aliases, &s->cap_aliases, s->n_aliases + 1, sizeof *s->aliases);
    if (status != TREK_OK)
        return status;
    char *copy = trek_strdup(alias);
    if (!copy)
        return TREK_ERR_MEMORY;
    s->slots[find_slot(s, s->slots, s->n_slots, alias)] = -(s->n_aliases + 1);
    s->aliases[s->n_aliases++] = (trek_state_alias){ copy, entry };
    return TREK_OK;
}

/* --- reading the list --------------------------------------------------------- */

int trek_state_count(const trek_state *s) { return s ? s->n_entries : 0; }

static const trek_state_entry *entry_at(const trek_state *s, int k, const char *function)
{
    if (!s) {
        trek_fail_missing(function, "state");
        return NULL;
    }
    if (k < 0 || k >= s->n_entries)
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: k: %d; must be below %d", function, k, s->n_entries);
    return &s->entries[k];
}

const char *trek_state_name(const trek_state *s, int k)
{
    const trek_state_entry *entry = entry_at(s, k, "state_name");
    return entry ? entry->name : NULL;
}

trek_tensor *trek_state_tensor(const trek_state *s, int k)
{
    const trek_state_entry *entry = entry_at(s, k, "state_tensor");
    return entry ? trek_state_entry_keep(&s->entries[k]) : NULL;
}

trek_status trek_state_describe(const trek_state *s, int k, trek_dtype *dtype, trek_shape *shape)
{
    const trek_state_entry *entry = entry_at(s, k, "state_describe");
    if (!entry)
        return trek_error_status();
    if (dtype)
        *dtype = trek_state_entry_dtype(entry);
    if (shape)
        *shape = trek_state_entry_shape(entry);
    return TREK_OK;
}

trek_tensor *trek_state_find(const trek_state *s, const char *name)
{
    if (!s || !name) {
        trek_fail_missing("state_find", s ? "name" : "state");
        return NULL;
    }
    int entry = trek_state_lookup(s, name);
    trek_note_search("state_find", entry < 0 ? name : NULL);
    return entry < 0 ? NULL : trek_state_entry_keep(&s->entries[entry]);
}

int trek_state_skipped_count(const trek_state *s) { return s ? s->n_skipped : 0; }

const char *trek_state_skipped_name(const trek_state *s, int k, const char **dtype)
{
    if (!s) {
        trek_fail_missing("state_skipped_name", "state");
        return NULL;
    }
    if (k < 0 || k >= s->n_skipped)
        return trek_fail_null(TREK_ERR_ARGUMENT, "state_skipped_name: k: %d; must be below %d", k, s->n_skipped);
    if (dtype)
        *dtype = s->skipped[k].text;
    return s->skipped[k].key;
}

int trek_state_lookup_skipped(const trek_state *s, const char *name)
{
    if (s->n_skipped_slots == 0)
        return -1;
    return s->skipped_slots[find_slot_of(s, skipped_name, s->skipped_slots, s->n_skipped_slots, name)] - 1;
}

/* --- tensors that may be in a file ------------------------------------------------ */

trek_state_source *trek_state_source_retain(trek_state_source *source)
{
    if (source)
        atomic_fetch_add_explicit(&source->refs, 1, memory_order_relaxed);
    return source;
}

void trek_state_source_release(trek_state_source *source)
{
    if (source && atomic_fetch_sub_explicit(&source->refs, 1, memory_order_acq_rel) == 1)
        source->destroy(source);
}

trek_dtype trek_state_entry_dtype(const trek_state_entry *entry)
{
    return entry->tensor ? trek_tensor_dtype(entry->tensor) : entry->dtype;
}

/* The entry was checked when it was made, so the change cannot fail. */
trek_shape trek_state_entry_shape(const trek_state_entry *entry)
{
    if (entry->tensor)
        return trek_tensor_shape(entry->tensor);
    trek_shape shape = entry->shape;
    trek_state_change_shape(&shape, &entry->change, entry->name);
    return shape;
}

trek_tensor *trek_state_entry_read(const trek_state_entry *entry)
{
    if (entry->tensor)
        return trek_tensor_retain(entry->tensor);
    trek_tensor *whole = entry->source->read(entry->source, entry->item);
    trek_tensor *changed = whole ? trek_state_changed(whole, &entry->change) : NULL;
    trek_tensor_release(whole);
    return changed;
}

trek_tensor *trek_state_entry_read_part(const trek_state_entry *entry, int64_t begin, int64_t count)
{
    if (!entry->tensor && entry->source->read_part && trek_state_change_is_none(&entry->change))
        return entry->source->read_part(entry->source, entry->item, begin, count);
    trek_tensor *whole = trek_state_entry_read(entry), *here = whole ? trek_tensor_to(whole, trek_cpu(0)) : NULL;
    trek_tensor *flat = here ? trek_tensor_readable(here) : NULL;
    trek_dtype dtype = trek_state_entry_dtype(entry);
    trek_tensor *part = flat ? trek_tensor_from_data(flat->data + (size_t)begin * trek_dtype_size(dtype),
                                                     trek_shape_make(&count, 1), dtype, trek_cpu(0)) : NULL;
    trek_tensor_release(flat);
    trek_tensor_release(here);
    trek_tensor_release(whole);
    return part;
}

trek_status trek_state_entry_check(const trek_state_entry *entry)
{
    return !entry->tensor && entry->source->check ? entry->source->check(entry->source, entry->item) : TREK_OK;
}

trek_tensor *trek_state_entry_keep(trek_state_entry *entry)
{
    if (entry->tensor)
        return entry->tensor;
    entry->tensor = trek_state_entry_read(entry);
    if (entry->tensor) {
        trek_state_source_release(entry->source);
        entry->source = NULL;
    }
    return entry->tensor;
}

trek_status trek_state_change_shape(trek_shape *shape, const trek_state_change *change, const char *name)
{
    char text[TREK_SHAPE_TEXT];
    int dim = change->dim < 0 ? change->dim + shape->ndim : change->dim, last = shape->ndim - 1;
    if (change->parts > 0) {
        if (dim < 0 || dim >= shape->ndim || change->part < 0 || change->part >= change->parts ||
            shape->sizes[dim] % change->parts != 0)
            return trek_fail(TREK_ERR_ARGUMENT, "state: %s %s cannot be divided: there is no part %d of %d along dimension %d",
                             name,
                             trek_shape_format(*shape, text, sizeof text), change->part, change->parts, change->dim);
        shape->sizes[dim] /= change->parts;
    }
    if (!change->transpose)
        return TREK_OK;
    if (last < 1)
        return trek_fail(TREK_ERR_ARGUMENT, "state: %s %s cannot be transposed: it has fewer than two dimensions", name,
                         trek_shape_format(*shape, text, sizeof text));
    int64_t size = shape->sizes[last];
    shape->sizes[last] = shape->sizes[last - 1];
    shape->sizes[last - 1] = size;
    return TREK_OK;
}

trek_tensor *trek_state_changed(trek_tensor *t, const trek_state_change *change)
{
    trek_shape shape = trek_tensor_shape(t), strides = trek_tensor_strides(t);
    int dim = change->dim < 0 ? change->dim + t->ndim : change->dim, last = t->ndim - 1;
    char *data = t->data;
    if (trek_state_change_is_none(change))
        return trek_tensor_retain(t);
    if (trek_state_change_shape(&shape, change, "a tensor") != TREK_OK)
        return NULL;
    if (change->parts > 0)
        data += change->part * (t->sizes[dim] / change->parts) * t->strides[dim] * (int64_t)trek_item_size[t->dtype];
    if (change->transpose) {
        int64_t stride = strides.sizes[last];
        strides.sizes[last] = strides.sizes[last - 1];
        strides.sizes[last - 1] = stride;
    }
    return trek_tensor_make_view(t, data, t->ndim, shape.sizes, strides.sizes);
}

/* --- texts ---------------------------------------------------------------------- */

static trek_state_note *find_note(const trek_state *s, const char *key)
{
    for (int k = 0; k < s->n_notes; k++)
        if (strcmp(s->notes[k].key, key) == 0)
            return &s->notes[k];
    return NULL;
}

const char *trek_state_metadata(const trek_state *s, const char *key)
{
    if (!s || !key) {
        trek_fail_missing("state_metadata", s ? "key" : "state");
        return NULL;
    }
    const trek_state_note *note = find_note(s, key);
    return note ? note->text : NULL;
}

trek_status trek_state_take_metadata(trek_state *to, const trek_state *from)
{
    trek_status status = TREK_OK;
    for (int k = 0; k < from->n_notes && status == TREK_OK; k++)
        if (!find_note(to, from->notes[k].key))
            status = trek_state_set_metadata(to, from->notes[k].key, from->notes[k].text);
    return status;
}

trek_status trek_state_add_skipped(trek_state *s, const char *name, const char *dtype)
{
    trek_status status = trek_array_grow(&s->skipped, &s->cap_skipped, s->n_skipped + 1, sizeof *s->skipped);
    if (status == TREK_OK)
        status = reserve(s, skipped_name, &s->skipped_slots, &s->n_skipped_slots, s->n_skipped);
    if (status != TREK_OK)
        return status;
    trek_state_note note = { trek_strdup(name), trek_strdup(dtype) };
    if (note.key && note.text) {
        int slot = find_slot_of(s, skipped_name, s->skipped_slots, s->n_skipped_slots, name);
        s->skipped[s->n_skipped++] = note;
        if (s->skipped_slots[slot] == 0)
            s->skipped_slots[slot] = s->n_skipped;
        return TREK_OK;
    }
    trek_free(note.key);
    trek_free(note.text);
    return TREK_ERR_MEMORY;
}

trek_status trek_state_set_metadata(trek_state *s, const char *key, const char *text)
{
    if (!s || !key || !text)
        return trek_fail_missing("state_set_metadata", !s ? "state" : !key ? "key" : "text");
    if (!trek_utf8_valid(key, strlen(key)) || !trek_utf8_valid(text, strlen(text)))
        return trek_fail(TREK_ERR_ARGUMENT, "state: text: not UTF-8; texts and their keys must be");
    trek_state_note *note = find_note(s, key);
    trek_status status = note ? TREK_OK : trek_array_grow(&s->notes, &s->cap_notes, s->n_notes + 1, sizeof *s->notes);
    if (status != TREK_OK)
        return status;
    char *text_copy = trek_strdup(text), *key_copy = note ? note->key : trek_strdup(key);
    if (!text_copy || !key_copy) {
        trek_free(text_copy);
        if (!note)
            trek_free(key_copy);
        return TREK_ERR_MEMORY;
    }
    if (note)
        trek_free(note->text);
    else
        note = &s->notes[s->n_notes++];
    *note = (trek_state_note){ key_copy, text_copy };
    return TREK_OK;
}
