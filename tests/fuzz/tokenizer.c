/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizers of files, and texts. The first byte says what the rest is: a tokenizer.json; a vocab.json, with no merges; a
 * merges.txt for a vocabulary of all bytes and pairs of a, b, space; or a text for the tokenizer that was made last. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/tokenizer.h"
#include "tensor/memory_internal.h"
#include "tensor/print.h"
#include "tests/fuzz/fuzz.h"

static const char *in_memory(const char *text, size_t size)
{
    static char path[64];
    snprintf(path, sizeof path, "/dev/shm/trek-fuzz-tokenizer-%d", (int)getpid());
    FILE *file = fopen(path, "wb");
    fuzz_expect(file && fwrite(text, 1, size, file) == size && fclose(file) == 0, "a file in memory");
    return path;
}

static const char *vocabulary(void)
{
    static char text[8192];
    char *to = text;
    static const char *const pairs[] = { "aa", "ab", "ba", "aaaa", "\\u0120a", "\\u0120ab", "\\u0120\\u0120", "aba",
                                         "<|endoftext|>" };
    int next = 0x100;
    if (*text)
        return text;
    to += sprintf(to, "{");
    for (int k = 0; k < 256; k++) {
        bool visible = (k >= '!' && k <= '~') || (k >= 0xA1 && k <= 0xAC) || k >= 0xAE;
        to += sprintf(to, "\"\\u%04x\":%d,", visible ? k : next++, k);
    }
    for (int k = 0; k < 9; k++)
        to += sprintf(to, "\"%s\":%d%s", pairs[k], 256 + k, k < 8 ? "," : "}");
    return text;
}

/* All bytes come back, and one by one words give what they give together. */
static void expect_round_trip(const trek_tokenizer *t, const char *text, size_t size)
{
    size_t bytes;
    for (int plain = 0; plain < 2; plain++) {
        trek_tensor *ids = trek_tokenizer_encode(t, text, size, &(trek_encode_opts){ .plain = plain });
        fuzz_expect(ids && trek_tensor_numel(ids) <= (int64_t)size, "tokens");
        char *again = trek_tokenizer_decode(t, trek_tensor_data(ids), trek_tensor_numel(ids), false, &bytes);
        fuzz_expect(again && bytes == size && (size == 0 || memcmp(again, text, size) == 0), "the text comes back");
        trek_string_free(&again);
        trek_tensor_release(ids);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static trek_tokenizer *last;
    if (!last) {
        const char *path = in_memory(vocabulary(), strlen(vocabulary()));
        static const char merges[] = "#version\na a\na b\nb a\naa aa\n\xC4\xA0 a\n\xC4\xA0 ab\n\xC4\xA0 \xC4\xA0\nab a\n";
        last = trek_tokenizer_gpt2(path, fuzz_file((const uint8_t *)merges, sizeof merges - 1));
        unlink(path);
        fuzz_expect(last != NULL, "a tokenizer");
    }
    if (size == 0)
        return 0;
    const char *text = (const char *)data + 1;
    trek_tokenizer *t = NULL;
    if (*data == 't') {
        char *own = trek_alloc(size); /* whose ends are watched */
        memcpy(own, text, size - 1);
        expect_round_trip(last, own, size - 1);
        trek_free(own);
        return 0;
    }
    if (*data == 'm') {
        const char *path = in_memory(vocabulary(), strlen(vocabulary()));
        t = trek_tokenizer_gpt2(path, fuzz_file(data + 1, size - 1));
        unlink(path);
    } else if (*data == 'v') {
        const char *path = in_memory("", 0);
        t = trek_tokenizer_gpt2(fuzz_file(data + 1, size - 1), path);
        unlink(path);
    } else {
        t = trek_tokenizer_read(fuzz_file(data + 1, size - 1));
    }
    fuzz_settle(t != NULL);
    if (!t)
        return 0;
    expect_round_trip(t, text, size - 1);
    expect_round_trip(t, "abab aaa  ab\n<|endoftext|>", 26);
    trek_tokenizer_free(&last);
    last = t;
    return 0;
}
