/* SPDX-License-Identifier: Apache-2.0 */
/* Reading tokenizers: vocab.json and merges.txt, or tokenizer.json. Nothing in them is trusted. */
#include <string.h>
#include <sys/stat.h>

#include "data/tokenizer_internal.h"
#include "nn/json.h"
#include "nn/read_file.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

#define MOST_BYTES (256u << 20)

/* --- the alphabet of bytes -------------------------------------------------------------- */

/* Files write a byte as a character: visible ones as themselves, the others in order from U+0100 on. */
static bool is_visible(int byte) { return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE; }

enum { ALPHABET = 0x144 };

/* -1 means that the character is no byte. */
static void fill_alphabet(int16_t of_character[ALPHABET])
{
    int next = 0x100;
    for (int k = 0; k < ALPHABET; k++)
        of_character[k] = -1;
    for (int byte = 0; byte < 256; byte++)
        of_character[is_visible(byte) ? byte : next++] = (int16_t)byte;
}

/* Converts a file's token in place to what it stands for: characters become bytes, which are never more. A token with
 * other characters is an added one and stays unchanged. Texts are UTF-8. */
static size_t to_bytes(char *token, size_t length)
{
    int16_t alphabet[ALPHABET];
    size_t to = 0;
    fill_alphabet(alphabet);
    for (int pass = 0; pass < 2; pass++)
        for (size_t k = 0; k < length; k++) {
            unsigned char c = (unsigned char)token[k];
            unsigned code = c;
            if (c >= 0xC0 && c < 0xE0 && k + 1 < length)
                code = (c & 0x1Fu) << 6 | ((unsigned char)token[++k] & 0x3F);
            else if (c >= 0x80)
                return length;
            if (code >= ALPHABET || alphabet[code] < 0)
                return length;
            if (pass == 1)
                token[to++] = (char)alphabet[code];
        }
    return to;
}

/* --- vocabularies ---------------------------------------------------------------------------- */

/* Parses {"token": number, ...}. */
static bool parse_vocabulary(trek_json *json, trek_tokenizer *t)
{
    bool more;
    if (!trek_json_expect(json, '{') || !trek_json_first(json, '}', &more))
        return false;
    while (more) {
        char *token;
        int64_t id;
        if (!trek_json_key_new(json, &token))
            return false;
        bool good = trek_json_integer(json, &id) &&
            trek_tokenizer_put(t, token, to_bytes(token, strlen(token)), id, json->path) == TREK_OK;
        trek_free(token);
        if (!good || !trek_json_next(json, '}', &more))
            return false;
    }
    return true;
}

static bool parse_end(trek_json *json)
{
    return (trek_json_peek(json) == 0 && json->at == json->end) || trek_json_fail(json, "text after the object's end");
}

/* --- merges -------------------------------------------------------------------------------------- */

/* Adds a merge of two tokens as the file writes them. Both texts are modified. */
static trek_status add_merge(trek_tokenizer *t, char *left, size_t left_length, char *right, size_t right_length,
                             const char *path)
{
    left_length = to_bytes(left, left_length);
    right_length = to_bytes(right, right_length);
    int32_t a = trek_tokenizer_lookup(t, left, left_length), b = trek_tokenizer_lookup(t, right, right_length), to = -1;
    char *both = trek_alloc(left_length + right_length + 1);
    if (!both)
        return TREK_ERR_MEMORY;
    memcpy(both, left, left_length);
    memcpy(both + left_length, right, right_length);
    if (left_length > 0 && right_length > 0)
        to = trek_tokenizer_lookup(t, both, left_length + right_length);
    trek_free(both);
    if (a < 0 || b < 0 || to < 0)
        return trek_fail(TREK_ERR_FORMAT, "%s: merge %d: its tokens do not exist", path, t->n_merges);
    return trek_tokenizer_put_merge(t, a, b, to, path);
}

/* Adds a merge from the text "left right", which is modified. */
static trek_status add_merge_text(trek_tokenizer *t, char *text, size_t length, const char *path)
{
    char *space = memchr(text, ' ', length), *end = text + length;
    if (!space || memchr(space + 1, ' ', (size_t)(end - space - 1)))
        return trek_fail(TREK_ERR_FORMAT, "%s: merge %d: must be two tokens with a space between them", path, t->n_merges);
    return add_merge(t, text, (size_t)(space - text), space + 1, (size_t)(end - space - 1), path);
}

/* Parses lines; the first may give a version. */
static trek_status parse_lines(trek_tokenizer *t, char *text, size_t length, const char *path)
{
    int64_t lines = 1;
    char *end = text + length;
    for (const char *p = text; p < end; p++)
        lines += *p == '\n';
    trek_status status = trek_tokenizer_room_for_merges(t, lines);
    for (char *next, *line = text; line < end && status == TREK_OK; line = next + 1) {
        next = memchr(line, '\n', (size_t)(end - line));
        next = next ? next : end;
        size_t count = (size_t)(next - line);
        count -= count > 0 && line[count - 1] == '\r';
        bool version = line == text && count >= 8 && memcmp(line, "#version", 8) == 0;
        if (count > 0 && !version)
            status = add_merge_text(t, line, count, path);
    }
    return status;
}

/* Parses ["left", "right"]. */
static bool parse_pair(trek_json *json, trek_tokenizer *t)
{
    char *left = NULL, *right = NULL;
    bool good = trek_json_expect(json, '[') && trek_json_string_new(json, &left) && trek_json_expect(json, ',') &&
        trek_json_string_new(json, &right) && trek_json_expect(json, ']') &&
        add_merge(t, left, strlen(left), right, strlen(right), json->path) == TREK_OK;
    trek_free(left);
    trek_free(right);
    return good;
}

static bool parse_merge(trek_json *json, trek_tokenizer *t)
{
    char *text;
    if (trek_json_peek(json) == '[')
        return parse_pair(json, t);
    if (!trek_json_string_new(json, &text))
        return false;
    bool good = add_merge_text(t, text, strlen(text), json->path) == TREK_OK;
    trek_free(text);
    return good;
}

/* Returns -1 on an error. */
static int64_t count_items(trek_json json)
{
    int64_t n = 0;
    bool more;
    if (!trek_json_expect(&json, '[') || !trek_json_first(&json, ']', &more))
        return -1;
    for (; more; n++)
        if (!trek_json_skip(&json) || !trek_json_next(&json, ']', &more))
            return -1;
    return n;
}

static bool parse_merges(trek_json *json, trek_tokenizer *t)
{
    bool more;
    int64_t count = count_items(*json);
    if (count < 0 || trek_tokenizer_room_for_merges(t, count) != TREK_OK || !trek_json_expect(json, '[') ||
        !trek_json_first(json, ']', &more))
        return false;
    while (more)
        if (!parse_merge(json, t) || !trek_json_next(json, ']', &more))
            return false;
    return true;
}

/* --- tokenizer.json ---------------------------------------------------------------------------------- */

/* Where the values of some keys of an object begin; `at` is NULL if it has no such key. */
typedef struct field {
    const char *key;
    const char *at;
} field;

static bool find_fields(trek_json *json, field *fields, int n)
{
    bool more;
    if (!trek_json_expect(json, '{') || !trek_json_first(json, '}', &more))
        return false;
    while (more) {
        char *key;
        if (!trek_json_key_new(json, &key))
            return false;
        int k = 0;
        while (k < n && strcmp(fields[k].key, key) != 0)
            k++;
        trek_free(key);
        if (k < n && fields[k].at)
            return trek_json_fail(json, "a key occurs twice");
        trek_json_peek(json);
        if (k < n)
            fields[k].at = json->at;
        if (!trek_json_skip(json) || !trek_json_next(json, '}', &more))
            return false;
    }
    return true;
}

static trek_json at(const trek_json *json, const field *f) { return (trek_json){ json->start, f->at, json->end, json->path }; }

static bool unsupported(const trek_json *json, const char *what)
{
    trek_fail(TREK_ERR_UNSUPPORTED, "%s: %s", json->path, what);
    return false;
}

/* Returns whether a field is absent, null, false, 0 or "", so that it would change nothing. */
static bool is_off(const trek_json *json, const field *f)
{
    trek_json value = at(json, f);
    char first = f->at ? trek_json_peek(&value) : 'n';
    return first == 'n' || first == 'f' || (first == '"' && value.at[1] == '"') ||
        (first == '0' && (value.at[1] != '.' || strspn(value.at + 2, "0") == strcspn(value.at + 2, ",}] \t\r\n")));
}

static bool has_text(const trek_json *json, const field *f, const char *wanted)
{
    trek_json value = at(json, f);
    size_t length = strlen(wanted);
    return f->at && *value.at == '"' && (size_t)(json->end - f->at) > length + 1 && memcmp(f->at + 1, wanted, length) == 0 &&
        f->at[length + 1] == '"';
}

static bool read_model(const trek_json *json, const field *model, trek_tokenizer *t)
{
    enum { TYPE, VOCAB, MERGES, DROPOUT, PREFIX, SUFFIX, FALLBACK, IGNORE, N };
    field f[N] = { { "type", NULL }, { "vocab", NULL }, { "merges", NULL }, { "dropout", NULL },
                   { "continuing_subword_prefix", NULL }, { "end_of_word_suffix", NULL }, { "byte_fallback", NULL },
                   { "ignore_merges", NULL } };
    trek_json value = at(json, model);
    if (!find_fields(&value, f, N))
        return false;
    if ((f[TYPE].at && !has_text(json, &f[TYPE], "BPE")) || !f[VOCAB].at || !f[MERGES].at)
        return unsupported(json, "the model is not a BPE");
    for (int k = DROPOUT; k < N; k++)
        if (!is_off(json, &f[k]))
            return unsupported(
                json, "its BPE has options that are not supported (dropout, prefix, suffix, byte_fallback, ignore_merges)");
    trek_json vocabulary = at(json, &f[VOCAB]), merges = at(json, &f[MERGES]);
    return parse_vocabulary(&vocabulary, t) && parse_merges(&merges, t);
}

static bool check_splitter(const trek_json *json, const field *splitter)
{
    field f[3] = { { "type", NULL }, { "add_prefix_space", NULL }, { "use_regex", NULL } };
    trek_json value = at(json, splitter);
    if (!splitter->at || *splitter->at != '{')
        return unsupported(json, "it has no ByteLevel pre-tokenizer");
    if (!find_fields(&value, f, 3))
        return false;
    if (!has_text(json, &f[0], "ByteLevel") || !is_off(json, &f[1]) || (f[2].at && is_off(json, &f[2])))
        return unsupported(json, "the pre-tokenizer is not ByteLevel with its pattern and without a prefix space");
    return true;
}

/* Parses {"id": number, "content": text, ...}. */
static bool read_added(trek_json *json, trek_tokenizer *t)
{
    enum { ID, CONTENT, WORD, LEFT, RIGHT, SPECIAL, N };
    field f[N] = { { "id", NULL }, { "content", NULL }, { "single_word", NULL }, { "lstrip", NULL }, { "rstrip", NULL },
                   { "special", NULL } };
    int64_t id;
    char *text;
    if (!find_fields(json, f, N))
        return false;
    if (!f[ID].at || !f[CONTENT].at)
        return trek_json_fail(json, "an added token needs id and content");
    for (int k = WORD; k <= RIGHT; k++)
        if (!is_off(json, &f[k]))
            return unsupported(json, "an added token takes in spaces, or is a whole word");
    trek_json number = at(json, &f[ID]), content = at(json, &f[CONTENT]);
    if (!trek_json_integer(&number, &id) || !trek_json_string_new(&content, &text))
        return false;
    int32_t there = trek_tokenizer_lookup(t, text, strlen(text));
    bool good = true;
    if (there < 0)
        good = trek_tokenizer_put(t, text, strlen(text), id, json->path) == TREK_OK;
    else if (there != id)
        good = trek_json_fail(json, "an added token has two numbers");
    good = good && trek_tokenizer_put_added(t, (int32_t)id, !is_off(json, &f[SPECIAL])) == TREK_OK;
    trek_free(text);
    return good;
}

static bool read_all_added(const trek_json *json, const field *added, trek_tokenizer *t)
{
    bool more;
    trek_json value = at(json, added);
    if (!added->at)
        return true;
    if (!trek_json_expect(&value, '[') || !trek_json_first(&value, ']', &more))
        return false;
    while (more)
        if (!read_added(&value, t) || !trek_json_next(&value, ']', &more))
            return false;
    return true;
}

static bool parse_tokenizer(trek_json *json, trek_tokenizer *t)
{
    enum { MODEL, SPLITTER, NORMALISER, ADDED, N };
    field f[N] = { { "model", NULL }, { "pre_tokenizer", NULL }, { "normalizer", NULL }, { "added_tokens", NULL } };
    if (!find_fields(json, f, N) || !parse_end(json))
        return false;
    if (!f[MODEL].at)
        return trek_json_fail(json, "a tokenizer needs a model");
    if (!is_off(json, &f[NORMALISER]))
        return unsupported(json, "it has a normaliser");
    return check_splitter(json, &f[SPLITTER]) && read_model(json, &f[MODEL], t) && read_all_added(json, &f[ADDED], t);
}

/* --- files -------------------------------------------------------------------------------------------- */

/* Returns the tokenizer if all is well, and frees it otherwise. */
static trek_tokenizer *finished(trek_tokenizer *t, bool good, const char *path)
{
    if (!good || trek_tokenizer_finish(t, path) != TREK_OK)
        trek_tokenizer_free(&t);
    return t;
}

static trek_tokenizer *read_json(const char *path)
{
    char *text;
    size_t length;
    if (trek_read_file(path, MOST_BYTES, &text, &length) != TREK_OK)
        return NULL;
    trek_json json = { text, text, text + length, path };
    trek_tokenizer *t = trek_tokenizer_empty();
    t = t ? finished(t, parse_tokenizer(&json, t), path) : NULL;
    trek_free(text);
    return t;
}

static bool read_two(trek_tokenizer *t, const char *vocab, const char *merges)
{
    static const char special[] = "<|endoftext|>";
    char *text;
    size_t length;
    if (trek_read_file(vocab, MOST_BYTES, &text, &length) != TREK_OK)
        return false;
    trek_json json = { text, text, text + length, vocab };
    bool good = parse_vocabulary(&json, t) && parse_end(&json);
    trek_free(text);
    if (!good || trek_read_file(merges, MOST_BYTES, &text, &length) != TREK_OK)
        return false;
    good = parse_lines(t, text, length, merges) == TREK_OK;
    trek_free(text);
    int32_t end = trek_tokenizer_lookup(t, special, sizeof special - 1);
    return good && (end < 0 || trek_tokenizer_put_added(t, end, true) == TREK_OK);
}

trek_tokenizer *trek_tokenizer_gpt2(const char *vocab, const char *merges)
{
    if (!vocab || !merges) {
        trek_fail_missing("tokenizer_gpt2", vocab ? "merges" : "vocab");
        return NULL;
    }
    trek_tokenizer *t = trek_tokenizer_empty();
    return t ? finished(t, read_two(t, vocab, merges), vocab) : NULL;
}

trek_tokenizer *trek_tokenizer_read(const char *path)
{
    struct stat info;
    if (!path) {
        trek_fail_missing("tokenizer_read", "path");
        return NULL;
    }
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
        return read_json(path);
    char *whole = trek_format("%s/tokenizer.json", path), *vocab = trek_format("%s/vocab.json", path),
         *merges = trek_format("%s/merges.txt", path);
    trek_tokenizer *t = NULL;
    if (whole && vocab && merges)
        t = stat(whole, &info) == 0 ? read_json(whole) : trek_tokenizer_gpt2(vocab, merges);
    trek_free(whole);
    trek_free(vocab);
    trek_free(merges);
    return t;
}
