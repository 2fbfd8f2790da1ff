/* SPDX-License-Identifier: Apache-2.0 */
/* Reading states from one file, or from several with an index as Hugging Face's programs write it: {"metadata":
 * {"total_size": bytes, ...}, "weight_map": {"name": "file", ...}}. The files lie next to the index. Nothing in it is
 * trusted. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "nn/json.h"
#include "nn/read_file.h"
#include "nn/safetensors.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

typedef struct place {
    char *name, *file;
} place;

typedef struct index_file {
    place *places;
    int n, capacity;
} index_file;

/* --- the index -------------------------------------------------------------------------- */

/* Returns whether the file lies next to the index and not in another folder. */
static bool is_plain(const char *file)
{
    return *file && *file != '.' && !strchr(file, '/') && !strchr(file, '\\');
}

static bool parse_place(trek_json *json, index_file *index)
{
    if (trek_array_grow(&index->places, &index->capacity, index->n + 1, sizeof *index->places) != TREK_OK)
        return false;
    place *p = &index->places[index->n];
    *p = (place){ NULL, NULL };
    if (!trek_json_key_new(json, &p->name))
        return false;
    index->n++;
    if (!trek_json_string_new(json, &p->file))
        return false;
    return is_plain(p->file) || trek_json_fail(json, "the index names a file outside of its folder");
}

static bool parse_map(trek_json *json, index_file *index)
{
    bool more;
    if (!trek_json_expect(json, '{') || !trek_json_first(json, '}', &more))
        return false;
    while (more)
        if (!parse_place(json, index) || !trek_json_next(json, '}', &more))
            return false;
    return true;
}

static bool parse_index(trek_json *json, index_file *index)
{
    bool more, seen = false;
    if (!trek_json_expect(json, '{') || !trek_json_first(json, '}', &more))
        return false;
    while (more) {
        char *key;
        if (!trek_json_key_new(json, &key))
            return false;
        bool is_map = strcmp(key, "weight_map") == 0;
        trek_free(key);
        if (is_map && seen)
            return trek_json_fail(json, "weight_map occurs twice");
        seen = seen || is_map;
        if (!(is_map ? parse_map(json, index) : trek_json_skip(json)) || !trek_json_next(json, '}', &more))
            return false;
    }
    if (trek_json_peek(json) != 0 || json->at != json->end)
        return trek_json_fail(json, "text after the index's end");
    return seen || trek_json_fail(json, "an index needs a weight_map");
}

static int by_file(const void *a, const void *b)
{
    const place *x = a, *y = b;
    int order = strcmp(x->file, y->file);
    return order ? order : strcmp(x->name, y->name);
}

/* --- its files ----------------------------------------------------------------------------- */

/* Checks what the index says about one file, the places [first, end). A tensor with a dtype that trek lacks counts as
 * present. */
static trek_status check_places(const trek_state *part, const index_file *index, int first, int end, const char *path)
{
    for (int k = first; k < end; k++) {
        const char *name = index->places[k].name;
        if (k > first && strcmp(index->places[k - 1].name, name) == 0)
            return trek_fail(TREK_ERR_FORMAT, "%s: the index has the name %s twice", path, name);
        if (trek_state_lookup(part, name) < 0 && trek_state_lookup_skipped(part, name) < 0)
            return trek_fail(TREK_ERR_FORMAT, "%s: tensor %s: it does not exist, although the index lists it", path, name);
    }
    return TREK_OK;
}

/* Moves everything from `part`, which is read separately to check that the file has what the index says. */
static trek_status take(trek_state *state, const trek_state *part, const char *path)
{
    trek_status status = trek_state_take_metadata(state, part);
    for (int k = 0; k < part->n_entries && status == TREK_OK; k++)
        if (trek_state_lookup(state, part->entries[k].name) >= 0)
            status = trek_fail(TREK_ERR_FORMAT, "%s: another file has the tensor %s, too", path, part->entries[k].name);
        else
            status = trek_state_add_like(state, part->entries[k].name, &part->entries[k], &(trek_state_change){ 0 });
    for (int k = 0; k < part->n_aliases && status == TREK_OK; k++)
        if (trek_state_lookup(state, part->aliases[k].name) >= 0)
            status = trek_fail(TREK_ERR_FORMAT, "%s: another file has the name %s, too", path, part->aliases[k].name);
        else
            status = trek_state_add_alias(state, part->aliases[k].name, part->entries[part->aliases[k].entry].name);
    for (int k = 0; k < part->n_skipped && status == TREK_OK; k++)
        status = trek_state_add_skipped(state, part->skipped[k].key, part->skipped[k].text);
    state->checked = state->checked && part->checked;
    return status;
}

static trek_status add_shard(trek_state *state, const index_file *index, int first, int end, const char *folder,
                             const trek_state_read_opts *opts)
{
    char *path = trek_format("%s%s", folder, index->places[first].file);
    trek_state *part = path ? trek_state_new() : NULL;
    if (part)
        part->checked = true;
    trek_status status = part ? trek_safetensors_add_file(part, path, opts) : TREK_ERR_MEMORY;
    if (status == TREK_OK)
        status = check_places(part, index, first, end, path);
    if (status == TREK_OK)
        status = take(state, part, path);
    trek_state_free(&part);
    trek_free(path);
    return status;
}

static trek_status add_shards(trek_state *state, index_file *index, const char *path, const trek_state_read_opts *opts)
{
    trek_status status = TREK_OK;
    const char *slash = strrchr(path, '/');
    char *folder = trek_format("%.*s", slash ? (int)(slash + 1 - path) : 0, path);
    if (!folder)
        return TREK_ERR_MEMORY;
    if (index->n > 0)
        qsort(index->places, (size_t)index->n, sizeof *index->places, by_file);
    for (int first = 0, end; first < index->n && status == TREK_OK; first = end) {
        for (end = first + 1; end < index->n && strcmp(index->places[end].file, index->places[first].file) == 0;)
            end++;
        status = add_shard(state, index, first, end, folder, opts);
    }
    trek_free(folder);
    return status;
}

static trek_status add_index(trek_state *state, const char *path, const trek_state_read_opts *opts)
{
    char *text;
    size_t length;
    index_file index = { 0 };
    trek_status status = trek_read_file(path, TREK_SAFETENSORS_MAX_HEADER, &text, &length);
    if (status != TREK_OK)
        return status;
    trek_json json = { text, text, text + length, path };
    status = parse_index(&json, &index) ? add_shards(state, &index, path, opts) : trek_error_status();
    for (int k = 0; k < index.n; k++) {
        trek_free(index.places[k].name);
        trek_free(index.places[k].file);
    }
    trek_free(index.places);
    trek_free(text);
    return status;
}

/* --- what is read --------------------------------------------------------------------------- */

/* Adds what is at a path: a file, an index of files, or a folder that contains one or the other. */
static trek_status add_path(trek_state *state, const char *path, const trek_state_read_opts *opts)
{
    struct stat info;
    size_t length = strlen(path);
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
        return length > 5 && strcmp(path + length - 5, ".json") == 0 ? add_index(state, path, opts)
            : trek_safetensors_add_file(state, path, opts);
    char *file = trek_format("%s/" TREK_SAFETENSORS_MODEL, path), *index = trek_format("%s/" TREK_SAFETENSORS_INDEX, path);
    trek_status status = TREK_ERR_MEMORY;
    if (file && index && stat(file, &info) == 0)
        status = trek_safetensors_add_file(state, file, opts);
    else if (file && index && stat(index, &info) == 0)
        status = add_index(state, index, opts);
    else if (file && index)
        status = trek_fail(TREK_ERR_IO, "%s: the folder has neither " TREK_SAFETENSORS_MODEL " nor " TREK_SAFETENSORS_INDEX,
                           path);
    trek_free(file);
    trek_free(index);
    return status;
}

trek_state *trek_state_read_with(const char *path, const trek_state_read_opts *opts)
{
    static const trek_state_read_opts defaults = { 0 };
    if (!path) {
        trek_fail_missing("state_read", "path");
        return NULL;
    }
    opts = opts ? opts : &defaults;
    trek_state *state = trek_state_new();
    if (!state)
        return NULL;
    state->checked = true;
    trek_status status = add_path(state, path, opts);
    for (int k = 0; k < state->n_entries && !opts->lazy && status == TREK_OK; k++)
        status = trek_state_entry_keep(&state->entries[k]) ? TREK_OK : trek_error_status();
    if (status != TREK_OK)
        trek_state_free(&state);
    return state;
}

trek_state *trek_state_read(const char *path) { return trek_state_read_with(path, NULL); }
