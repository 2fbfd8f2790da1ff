/* SPDX-License-Identifier: Apache-2.0 */
/* The list of named tensors. */
#include "nn/state.h"

#include <string.h>

#include "nn/pointer_map.h"
#include "nn/state_internal.h"
#include "nn/utf8.h"
#include "nn/walk.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

trek_state *trek_state_new(void) { return trek_calloc(1, sizeof(trek_state)); }

void trek_state_free(trek_state **state)
{
    if (!state || !*state)
        return;
    trek_state *s = *state;
    *state = NULL;
    for (int k = 0; k < s->n_entries; k++) {
        trek_free(s->entries[k].name);
        trek_tensor_release(s->entries[k].tensor);
    }
    for (int k = 0; k < s->n_aliases; k++)
        trek_free(s->aliases[k].name);
    for (int k = 0; k < s->n_notes; k++) {
        trek_free(s->notes[k].key);
        trek_free(s->notes[k].text);
    }
    trek_free(s->entries);
    trek_free(s->aliases);
    trek_free(s->notes);
    trek_free(s->slots);
    trek_free(s);
}

/* --- names ------------------------------------------------------------------ */

static const char *slot_name(const trek_state *s, int slot)
{
    return slot > 0 ? s->entries[slot - 1].name : s->aliases[-slot - 1].name;
}

/* The slot that holds name, or the free one where it belongs (FNV-1a, linear probing). */
static int find_slot(const trek_state *s, const int *slots, int n_slots, const char *name)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (const char *p = name; *p; p++)
        hash = (hash ^ (unsigned char)*p) * UINT64_C(1099511628211);
    int mask = n_slots - 1, at = (int)((hash ^ hash >> 32) & (uint64_t)mask);
    while (slots[at] != 0 && strcmp(slot_name(s, slots[at]), name) != 0)
        at = (at + 1) & mask;
    return at;
}

static trek_status reserve_slot(trek_state *s)
{
    if (2 * (s->n_entries + s->n_aliases + 1) <= s->n_slots)
        return TREK_OK;
    int n = s->n_slots ? 2 * s->n_slots : 64;
    int *slots = trek_calloc((size_t)n, sizeof *slots);
    if (!slots)
        return TREK_ERR_MEMORY;
    for (int k = 0; k < s->n_slots; k++)
        if (s->slots[k] != 0)
            slots[find_slot(s, slots, n, slot_name(s, s->slots[k]))] = s->slots[k];
    trek_free(s->slots);
    s->slots = slots;
    s->n_slots = n;
    return TREK_OK;
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
        return trek_fail(TREK_ERR_ARGUMENT, "state: a tensor's name must be UTF-8, not empty and not __metadata__");
    if (trek_state_lookup(s, name) >= 0)
        return trek_fail(TREK_ERR_ARGUMENT, "state: the name \"%s\" is taken", name);
    return TREK_OK;
}

trek_status trek_state_add(trek_state *s, const char *name, trek_tensor *tensor)
{
    if (!s || !tensor)
        return trek_fail_missing("state_add", s ? "tensor" : "state");
    trek_status status = check_name(s, name);
    if (status == TREK_OK)
        status = reserve_slot(s);
    if (status == TREK_OK)
        status = trek_array_grow(&s->entries, &s->cap_entries, s->n_entries + 1, sizeof *s->entries);
    if (status != TREK_OK)
        return status;
    char *copy = trek_strdup(name);
    if (!copy)
        return TREK_ERR_MEMORY;
    s->slots[find_slot(s, s->slots, s->n_slots, name)] = s->n_entries + 1;
    s->entries[s->n_entries++] = (trek_state_entry){ copy, trek_tensor_retain(tensor) };
    return TREK_OK;
}

trek_status trek_state_add_alias(trek_state *s, const char *alias, const char *name)
{
    if (!s || !name)
        return trek_fail_missing("state_add_alias", s ? "name" : "state");
    int entry = trek_state_lookup(s, name);
    if (entry < 0)
        return trek_fail(TREK_ERR_ARGUMENT, "state: \"%s\" cannot be a name of \"%s\", which is not there", alias ? alias : "",
                         name);
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
        return trek_fail_null(TREK_ERR_ARGUMENT, "%s: %d is not below %d", function, k, s->n_entries);
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
    return entry ? entry->tensor : NULL;
}

trek_tensor *trek_state_find(const trek_state *s, const char *name)
{
    if (!s || !name) {
        trek_fail_missing("state_find", s ? "name" : "state");
        return NULL;
    }
    int entry = trek_state_lookup(s, name);
    return entry < 0 ? NULL : s->entries[entry].tensor;
}

/* --- texts ---------------------------------------------------------------------- */

static trek_state_note *find_note(const trek_state *s, const char *key)
{
    for (int k = 0; k < s->n_notes; k++)
        if (strcmp(s->notes[k].key, key) == 0)
            return &s->notes[k];
    return NULL;
}

const char *trek_state_text(const trek_state *s, const char *key)
{
    if (!s || !key) {
        trek_fail_missing("state_text", s ? "key" : "state");
        return NULL;
    }
    const trek_state_note *note = find_note(s, key);
    return note ? note->text : NULL;
}

trek_status trek_state_set_text(trek_state *s, const char *key, const char *text)
{
    if (!s || !key || !text)
        return trek_fail_missing("state_set_text", !s ? "state" : !key ? "key" : "text");
    if (!trek_utf8_valid(key, strlen(key)) || !trek_utf8_valid(text, strlen(text)))
        return trek_fail(TREK_ERR_ARGUMENT, "state: texts and their keys must be UTF-8");
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
