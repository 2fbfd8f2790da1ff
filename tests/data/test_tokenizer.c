/* SPDX-License-Identifier: Apache-2.0 */
/* Byte-level BPE: words by the pattern, merges by rank against a plain loop, files that are refused. What the tokenizers package
 * makes of texts is compared in tests/checks/check_transformers.py. */
#include <sys/stat.h>
#include <unistd.h>

#include "data/tokenizer.h"
#include "data/tokenizer_internal.h"
#include "tensor/layout.h"
#include "tensor/print.h"
#include "tests/support/scoped.h"
#include "tests/support/support.h"

static char folder[64], path[400];

static const char *in_folder(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put_text(const char *name, const char *text)
{
    FILE *file = fopen(in_folder(name), "wb");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int teardown(void **state)
{
    static const char *const names[] = { "vocab.json", "merges.txt", "tokenizer.json" };
    trek_error_clear();
    for (int k = 0; k < 3; k++)
        unlink(in_folder(names[k]));
    return 0;
}

/* --- a vocabulary: all bytes, and what comes of merges ----------------------------------- */

/* The character that stands for a byte in files. */
static void character(int byte, char *text)
{
    int code = byte;
    if (!((byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE)) {
        code = 0x100;
        for (int k = 0; k < byte; k++)
            code += !((k >= '!' && k <= '~') || (k >= 0xA1 && k <= 0xAC) || k >= 0xAE);
    }
    if (code < 0x80)
        snprintf(text, 8, "%s%c", code == '"' || code == '\\' ? "\\" : "", code);
    else
        snprintf(text, 8, "%c%c", 0xC0 | code >> 6, 0x80 | (code & 0x3F));
}

static const char *const merges[] = { "\xC4\xA0 t", "h e", "\xC4\xA0t he", "a a", "aa aa", "a b", "ab a", "l l", "' ll",
                                      "\xC4\x8A \xC4\x8A", "1 2",
                                      "\xC3\x83 \xC2\xA9", "b a", "aaaa b", "aba aba" };
enum { MERGES = sizeof merges / sizeof *merges, FIRST = 256 };

static void vocabulary_text(char *text)
{
    char one[8];
    text += sprintf(text, "{");
    for (int k = 0; k < 256; k++) {
        character(k, one);
        text += sprintf(text, "\"%s\": %d, ", one, k);
    }
    for (int k = 0; k < MERGES; k++) {
        const char *space = strchr(merges[k], ' ');
        text += sprintf(text, "\"%.*s%s\": %d, ", (int)(space - merges[k]), merges[k], space + 1, FIRST + k);
    }
    sprintf(text, "\"<|endoftext|>\": %d}", FIRST + MERGES);
}

static void merges_text(char *text, const char *before, const char *between, const char *after)
{
    text += sprintf(text, "%s", before);
    for (int k = 0; k < MERGES; k++)
        text += sprintf(text, "%s%s", merges[k], k < MERGES - 1 ? between : after);
}

static char vocabulary[8192], lines[1024];

static trek_tokenizer *small(void)
{
    vocabulary_text(vocabulary);
    merges_text(lines, "#version: 0.2\n", "\n", "\n");
    put_text("vocab.json", vocabulary);
    put_text("merges.txt", lines);
    trek_tokenizer *t = trek_tokenizer_read(folder);
    if (!t)
        fail_msg("%s", trek_error());
    return t;
}

static void expect_ids(const trek_tokenizer *t, const char *text, bool plain, int n, const int64_t *want)
{
    int64_t ids[64];
    assert_int_equal(trek_tokenizer_encode_to(t, text, strlen(text), &(trek_encode_opts){ .plain = plain }, ids, 64), n);
    for (int k = 0; k < n; k++)
        assert_int_equal(ids[k], want[k]);
}

static void test_gpt2(void **state)
{
    trek_tokenizer *t = small();
    size_t bytes;
    assert_int_equal(trek_tokenizer_size(t), FIRST + MERGES + 1);
    assert_int_equal(trek_tokenizer_id(t, " the", 4), FIRST + 2);
    assert_int_equal(trek_tokenizer_id(t, "no", 2), -1);
    assert_memory_equal(trek_tokenizer_token(t, FIRST + 9, &bytes), "\n\n", 2);
    assert_int_equal(bytes, 2);
    REFUSED(trek_tokenizer_token(t, FIRST + MERGES + 1, &bytes), TREK_ERR_ARGUMENT, "there is no token");
    expect_ids(t, "", false, 0, NULL);
    expect_ids(t, "the the", false, 3, (int64_t[]){ 't', FIRST + 1, FIRST + 2 });
    expect_ids(t, "aaaaa", false, 2, (int64_t[]){ FIRST + 4, 'a' });
    expect_ids(t, "caf\xC3\xA9", false, 4, (int64_t[]){ 'c', 'a', 'f', FIRST + 11 });
    expect_ids(t, "we'll", false, 3, (int64_t[]){ 'w', 'e', FIRST + 8 });
    expect_ids(t, "\n\n12", false, 3, (int64_t[]){ '\n', '\n', FIRST + 10 }); /* the last one is a word of its own */
    expect_ids(t, "\n\n", false, 1, (int64_t[]){ FIRST + 9 });
    expect_ids(t, "\n\n<|endoftext|>a", false, 3, (int64_t[]){ FIRST + 9, FIRST + MERGES, 'a' });
    expect_ids(t, "<|endoftext|", false, 12, (int64_t[]){ '<', '|', 'e', 'n', 'd', 'o', 'f', 't', 'e', 'x', 't', '|' });
    expect_ids(t, "<|endoftext|>", true, 13, (int64_t[]){ '<', '|', 'e', 'n', 'd', 'o', 'f', 't', 'e', 'x', 't', '|', '>' });
    trek_tensor *ids = trek_tokenizer_encode(t, " the<|endoftext|>\0\xFF", 19, NULL);
    assert_int_equal(trek_tensor_numel(ids), 4);
    assert_int_equal(trek_tensor_dtype(ids), TREK_I64);
    char *text = trek_tokenizer_decode(t, trek_tensor_data(ids), 4, false, &bytes);
    assert_int_equal(bytes, 19);
    assert_memory_equal(text, " the<|endoftext|>\0\xFF", 20);
    trek_string_free(&text);
    text = trek_tokenizer_decode(t, trek_tensor_data(ids), 4, true, &bytes);
    assert_memory_equal(text, " the\0\xFF", 7);
    trek_string_free(&text);
    trek_tensor_release(ids);

    /* Of several special tokens the longest. */
    assert_int_equal(trek_tokenizer_add_special(t, "<|"), FIRST + MERGES + 1);
    assert_int_equal(trek_tokenizer_add_special(t, "<|"), FIRST + MERGES + 1);
    assert_int_equal(trek_tokenizer_add_special(t, "aa"), FIRST + 3);
    expect_ids(t, "<|<|endoftext|>aaa", false, 4, (int64_t[]){ FIRST + MERGES + 1, FIRST + MERGES, FIRST + 3, 'a' });
    int64_t few[2];
    assert_int_equal(trek_tokenizer_encode_to(t, "xyz", 3, NULL, few, 2), 3); /* more than there is room for */
    assert_true(few[0] == 'x' && few[1] == 'y');
    assert_int_equal(trek_tokenizer_encode_to(t, "xyz", 3, NULL, NULL, 0), 3);
    trek_tokenizer_free(&t);
    trek_tokenizer_free(&t);
}

/* --- the pattern ---------------------------------------------------------------------------- */

static void test_words(void **state)
{
    static const struct { const char *text, *words; } cases[] = { /* words end in "|" */
        { "Hello, world", "Hello|,| world|" }, { "a  b", "a| | b|" }, { "a   ", "a|   |" }, { "  \n x", "  \n| x|" },
            { "\t\tx", "\t|\t|x|" },
        { "it's they're we'd I'll you've I'm can't'", "it|'s| they|'re| we|'d| I|'ll| you|'ve| I|'m| can|'t|'|" },
        { "'S 'l", "'|S| '|l|" },
        { "'", "'|" }, { " 's", " '|s|" }, { "''s", "''|s|" }, { "x12.5%", "x|12|.|5|%|" }, { " 12", " 12|" },
        { " !!a", " !!|a|" },
        { "\xC3\xA9\xE4\xB8\xAD\xC2\xB2\xE2\x85\xA7!", "\xC3\xA9\xE4\xB8\xAD|\xC2\xB2\xE2\x85\xA7|!|" },
        /* letters; superscript, Roman numeral */
        { "a\xC2\xA0 b", "a|\xC2\xA0| b|" }, { "\xE3\x80\x80x", "\xE3\x80\x80|x|" }, { "a\xCC\x81 b", "a|\xCC\x81| b|" },
            /* a mark is no letter */
        { "\xF0\x9F\x98\x80\xF0\x9F\x98\x80 \xF0\x9F\x98\x80", "\xF0\x9F\x98\x80\xF0\x9F\x98\x80| \xF0\x9F\x98\x80|" },
        { "a\xFF\xC3(", "a|\xFF\xC3(|" }, { "\xED\xA0\x80\xF4\x90\x80\x80\xC0\x80", "\xED\xA0\x80\xF4\x90\x80\x80\xC0\x80|" },
        { "\xE4\xB8", "\xE4\xB8|" },
    };
    const uint8_t *classes = trek_char_classes();
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const unsigned char *p = (const unsigned char *)cases[k].text, *end = p + strlen(cases[k].text);
        char words[256] = "";
        while (p < end) {
            const unsigned char *next = trek_word_end(classes, p, end);
            assert_true(next > p && next <= end);
            snprintf(words + strlen(words), sizeof words - strlen(words), "%.*s|", (int)(next - p), (const char *)p);
            p = next;
        }
        assert_string_equal(words, cases[k].words);
    }
}

/* --- merges ------------------------------------------------------------------------------------ */

/* One of `most` numbers. */
static unsigned draw(uint32_t stream, size_t k, unsigned most)
{
    return (unsigned)((test_number(stream, (uint32_t)k) + 1) * 0.5f * (float)most) % most;
}

/* The list's first pair, the leftmost of it, until there is none. */
static int plain_merges(const trek_tokenizer *t, const char *word, int64_t *ids)
{
    int n = (int)strlen(word);
    for (int k = 0; k < n; k++)
        ids[k] = (unsigned char)word[k];
    for (;;) {
        int best = MERGES, where = 0;
        for (int k = 0; k + 1 < n; k++)
            for (int m = 0; m < best; m++) {
                const char *space = strchr(merges[m], ' ');
                int64_t left = trek_tokenizer_id(t, merges[m], (size_t)(space - merges[m]));
                if (ids[k] == left && ids[k + 1] == trek_tokenizer_id(t, space + 1, strlen(space + 1))) {
                    best = m;
                    where = k;
                }
            }
        if (best == MERGES)
            return n;
        ids[where] = FIRST + best;
        memmove(ids + where + 1, ids + where + 2, (size_t)(--n - where - 1) * sizeof *ids);
    }
}

/* Words of a few letters, in which pairs overlap, short ones and those that a heap is made for. */
static void test_merges(void **state)
{
    trek_tokenizer *t = small();
    static int64_t want[4096], got[4096];
    static char word[4096];
    for (int round = 0; round < 400; round++) {
        int length = round < 300 ? 1 + round % 60 : 100 + 7 * (round - 300);
        for (int k = 0; k < length; k++)
            word[k] = "abahel"[draw(9, (size_t)(round * 4096 + k), round % 5 ? 2 : 6)];
        word[length] = 0;
        int n = plain_merges(t, word, want);
        assert_int_equal(trek_tokenizer_encode_to(t, word, (size_t)length, NULL, got, 4096), n);
        assert_memory_equal(got, want, (size_t)n * sizeof *got);
    }
    /* A long text: words that come again are kept, with the same result as one by one. */
    size_t bytes = 60000;
    char *text = malloc(bytes + 1);
    int64_t *ids = malloc(bytes * sizeof *ids), *one = malloc(bytes * sizeof *one);
    for (size_t k = 0; k < bytes; k++)
        text[k] = "ab the1\n'l"[draw(8, k, 10)];
    int64_t n = trek_tokenizer_encode_to(t, text, bytes, NULL, ids, (int64_t)bytes), m = 0;
    for (const unsigned char *p = (unsigned char *)text, *end = p + bytes; p < end;) {
        const unsigned char *next = trek_word_end(t->classes, p, end);
        m += trek_tokenizer_encode_to(t, (const char *)p, (size_t)(next - p), NULL, one + m, (int64_t)bytes - m);
        p = next;
    }
    assert_int_equal(n, m);
    assert_memory_equal(ids, one, (size_t)n * sizeof *ids);
    memset(text, 'a', bytes); /* one word; more tokens than a third of the bytes would need another try */
    n = trek_tokenizer_encode_to(t, text, bytes, NULL, ids, (int64_t)bytes);
    assert_int_equal(n, bytes / 4);
    memset(text, 'x', bytes);
    trek_tensor *tensor = trek_tokenizer_encode(t, text, bytes, NULL);
    assert_int_equal(trek_tensor_numel(tensor), bytes);
    trek_tensor_release(tensor);
    free(text);
    free(ids);
    free(one);
    trek_tokenizer_free(&t);
}

/* --- tokenizer.json ------------------------------------------------------------------------------- */

#define SPLITTER "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}"
#define ADDED                                                                                                                    \
    "\"added_tokens\":[{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":%s,\"rstrip\":false,\"special\":%s}]"

static char json[20000];

static void put_json(const char *rest, const char *model, const char *vocab, const char *list)
{
    snprintf(json, sizeof json,
             "{\"version\":\"1.0\",\"truncation\":null,%s,\"model\":{\"type\":\"BPE\",\"dropout\":null,%s\"vocab\":%s,"
             "\"merges\":[%s]},\"decoder\":{\"a\":[1.5,{}]}}",
             rest, model, vocab, list);
    put_text("tokenizer.json", json);
}

static void test_json(void **state)
{
    char added[400], pairs[2048] = "", strings[2048];
    trek_tokenizer *two = small();
    merges_text(strings, "\"", "\",\"", "\"");
    for (int k = 0; k < MERGES; k++) {
        const char *space = strchr(merges[k], ' ');
        snprintf(pairs + strlen(pairs), sizeof pairs - strlen(pairs), "%s[\"%.*s\",\"%s\"]", k ? "," : "",
                 (int)(space - merges[k]), merges[k],
                 space + 1);
    }
    snprintf(added, sizeof added, "\"normalizer\":null," SPLITTER "," ADDED, FIRST + MERGES + 5, "[MASK] x", "false", "false");
    for (int k = 0; k < 2; k++) {
        put_json(added, "\"byte_fallback\":false,\"continuing_subword_prefix\":\"\",", vocabulary, k ? pairs : strings);
        trek_tokenizer *t = trek_tokenizer_read(folder); /* which it is read of first */
        if (!t)
            fail_msg("%s", trek_error());
        assert_int_equal(trek_tokenizer_size(t), FIRST + MERGES + 6);
        expect_ids(t, "the aba[MASK] xaa", false, 6,
                   (int64_t[]){ 't', FIRST + 1, ' ', FIRST + 6, FIRST + MERGES + 5, FIRST + 3 });
        for (int id = 0; id <= FIRST + MERGES; id++) {
            size_t a, b;
            const char *x = trek_tokenizer_token(t, id, &a), *y = trek_tokenizer_token(two, id, &b);
            assert_true(a == b && memcmp(x, y, a) == 0);
        }
        int64_t mask = FIRST + MERGES + 5, gap = mask - 1;
        char *text = trek_tokenizer_decode(t, &mask, 1, true, NULL); /* added, but not special */
        assert_string_equal(text, "[MASK] x");
        trek_string_free(&text);
        REFUSED(trek_tokenizer_decode(t, &gap, 1, true, NULL), TREK_ERR_ARGUMENT, "there is no token");
        trek_tokenizer_free(&t);
    }
    trek_tokenizer_free(&two);
}

static void refuse(const char *rest, const char *model, const char *vocab, const char *list, trek_status status,
                   const char *message)
{
    put_json(rest, model, vocab, list);
    REFUSED(trek_tokenizer_read(folder), status, message);
}

static void test_refused_json(void **state)
{
    char added[400];
    trek_tokenizer *t = small();
    trek_tokenizer_free(&t);
    refuse("\"normalizer\":{\"type\":\"NFC\"}," SPLITTER, "", vocabulary, "", TREK_ERR_UNSUPPORTED, "normaliser");
    refuse("\"a\":1", "", vocabulary, "", TREK_ERR_UNSUPPORTED, "no ByteLevel");
    refuse("\"pre_tokenizer\":{\"type\":\"Sequence\"}", "", vocabulary, "", TREK_ERR_UNSUPPORTED, "not ByteLevel");
    refuse("\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", "", vocabulary, "", TREK_ERR_UNSUPPORTED,
           "prefix space");
    refuse("\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":false}", "", vocabulary, "", TREK_ERR_UNSUPPORTED,
           "its pattern");
    refuse(SPLITTER, "\"ignore_merges\":true,", vocabulary, "", TREK_ERR_UNSUPPORTED, "ignore_merges");
    refuse(SPLITTER, "\"dropout\":0.1,", vocabulary, "", TREK_ERR_FORMAT, "occurs twice");
    refuse(SPLITTER, "\"end_of_word_suffix\":\"</w>\",", vocabulary, "", TREK_ERR_UNSUPPORTED, "suffix");
    refuse(SPLITTER, "", "{\"a\":0}", "", TREK_ERR_FORMAT, "has no token");
    refuse(SPLITTER, "", "{\"a\":0,\"b\":0}", "", TREK_ERR_FORMAT, "occurs twice");
    refuse(SPLITTER, "", "{\"a\":0,\"a\":1}", "", TREK_ERR_FORMAT, "occurs twice");
    refuse(SPLITTER, "", "{\"a\":-1}", "", TREK_ERR_FORMAT, "not negative");
    refuse(SPLITTER, "", "{\"a\":2000000000}", "", TREK_ERR_FORMAT, "far from all others");
    refuse(SPLITTER, "", "[]", "", TREK_ERR_FORMAT, "'{' was expected");
    refuse(SPLITTER, "", vocabulary, "\"a a\",\"a a\"", TREK_ERR_FORMAT, "occurs twice");
    refuse(SPLITTER, "", vocabulary, "\"a x\"", TREK_ERR_FORMAT, "its tokens do not exist");
    refuse(SPLITTER, "", vocabulary, "\"a \"", TREK_ERR_FORMAT, "its tokens do not exist");
    refuse(SPLITTER, "", vocabulary, "\"aa\"", TREK_ERR_FORMAT, "must be two tokens");
    refuse(SPLITTER, "", vocabulary, "\"a a a\"", TREK_ERR_FORMAT, "must be two tokens");
    refuse(SPLITTER, "", vocabulary, "[\"a\"]", TREK_ERR_FORMAT, "',' was expected");
    snprintf(added, sizeof added, SPLITTER "," ADDED, 7, "a", "false", "true");
    refuse(added, "", vocabulary, "", TREK_ERR_FORMAT, "two numbers");
    snprintf(added, sizeof added, SPLITTER "," ADDED, 7, "long", "false", "true");
    refuse(added, "", vocabulary, "", TREK_ERR_FORMAT, "occurs twice");
    snprintf(added, sizeof added, SPLITTER "," ADDED, 500, "long", "true", "true");
    refuse(added, "", vocabulary, "", TREK_ERR_UNSUPPORTED, "takes in spaces");
    refuse(SPLITTER ",\"added_tokens\":[{\"id\":1}]", "", vocabulary, "", TREK_ERR_FORMAT, "needs id and content");
    put_text("tokenizer.json", "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}");
    REFUSED(trek_tokenizer_read(folder), TREK_ERR_UNSUPPORTED, "not a BPE");
    put_text("tokenizer.json", "{}");
    REFUSED(trek_tokenizer_read(in_folder("tokenizer.json")), TREK_ERR_FORMAT, "needs a model");
    put_text("tokenizer.json", "{} {}");
    REFUSED(trek_tokenizer_read(in_folder("tokenizer.json")), TREK_ERR_FORMAT, "after the object's end");
}

static void test_refused(void **state)
{
    trek_tokenizer *t = small();
    put_text("merges.txt", "h e\r\n\r\na a\r\n"); /* as some systems write it */
    trek_tokenizer_free(&t);
    t = trek_tokenizer_read(folder);
    expect_ids(t, "heaa", false, 2, (int64_t[]){ FIRST + 1, FIRST + 3 });
    assert_int_equal(trek_tokenizer_add_special(t, ""), -1);
    expect_error(TREK_ERR_ARGUMENT, "token");
    assert_int_equal(trek_tokenizer_add_special(NULL, "x"), -1);
    expect_error(TREK_ERR_ARGUMENT, "tokenizer");
    assert_int_equal(trek_tokenizer_encode_to(NULL, "x", 1, NULL, NULL, 0), -1);
    expect_error(TREK_ERR_ARGUMENT, "tokenizer");
    assert_int_equal(trek_tokenizer_encode_to(t, NULL, 1, NULL, NULL, 0), -1);
    expect_error(TREK_ERR_ARGUMENT, "text");
    REFUSED(trek_tokenizer_encode(NULL, "x", 1, NULL), TREK_ERR_ARGUMENT, "tokenizer");
    REFUSED(trek_tokenizer_decode(t, NULL, 1, false, NULL), TREK_ERR_ARGUMENT, "numbers");
    assert_int_equal(trek_tokenizer_id(NULL, "x", 1), -1);
    expect_error(TREK_ERR_ARGUMENT, "tokenizer");
    REFUSED(trek_tokenizer_token(t, 0, NULL), TREK_ERR_ARGUMENT, "bytes");
    trek_tokenizer_free(&t);
    put_text("merges.txt", "h e\nx y\n");
    REFUSED(trek_tokenizer_read(folder), TREK_ERR_FORMAT, "merge 1: its tokens do not exist");
    unlink(in_folder("merges.txt"));
    REFUSED(trek_tokenizer_read(folder), TREK_ERR_IO, "merges.txt");
    put_text("vocab.json", "{\"a\": 1");
    REFUSED(trek_tokenizer_gpt2(in_folder("vocab.json"), "/nowhere"), TREK_ERR_FORMAT, "'}' was expected");
    REFUSED(trek_tokenizer_gpt2(NULL, "x"), TREK_ERR_ARGUMENT, "vocab");
    REFUSED(trek_tokenizer_read(NULL), TREK_ERR_ARGUMENT, "path");
    REFUSED(trek_tokenizer_read("/nowhere/at/all"), TREK_ERR_IO, "No such file");
    assert_int_equal(trek_tokenizer_size(NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_gpt2, teardown),         cmocka_unit_test(test_words),
        cmocka_unit_test_teardown(test_merges, teardown),       cmocka_unit_test_teardown(test_json, teardown),
        cmocka_unit_test_teardown(test_refused_json, teardown), cmocka_unit_test_teardown(test_refused, teardown),
    };
    snprintf(folder, sizeof folder, "/tmp/trek-tokenizer-%d", (int)getpid());
    if (mkdir(folder, 0777) != 0)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
