/* SPDX-License-Identifier: Apache-2.0 */
/* Names that MLflow accepts: letters, numbers, and _ - . : / space. They must also work as files, because a name is a
 * path. */
#include "monitor/viewer/mlflow_name.h"

#include <stdint.h>
#include <string.h>

#include "data/tokenizer_internal.h"
#include "tensor/memory_internal.h"

enum { LONGEST = 200 };

/* Returns the code point at p and its number of bytes. A byte that is not part of valid UTF-8 becomes a code point
 * that is never accepted. */
static uint32_t code_at(const unsigned char *p, int *bytes)
{
    static const unsigned char least[] = { 0, 0, 0xc2, 0xe0, 0xf0 };
    int n = *p < 0x80 ? 1 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : 4;
    uint32_t code = n == 1 ? *p : *p & (0x7fu >> n);
    *bytes = 1;
    if (*p < least[n])
        return 0;
    for (int k = 1; k < n; k++) {
        if ((p[k] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (p[k] & 0x3f);
    }
    *bytes = n;
    return code;
}

static bool taken(uint32_t code)
{
    if (code < 0x80)
        return code && strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.:/ ", (int)code);
    const uint8_t *classes = trek_char_classes();
    return classes && code < TREK_CHAR_CLASSES && (classes[code] == TREK_CHAR_LETTER || classes[code] == TREK_CHAR_NUMBER);
}

/* Parts that are empty, "." or ".." would name other files and become "_": "a//b" becomes "a/_/b". */
static void settle_parts(trek_text *out, const char *name)
{
    for (const char *part = name;; part++) {
        size_t length = strcspn(part, "/");
        bool itself = length == 0 || (length == 1 && part[0] == '.') || (length == 2 && part[0] == '.' && part[1] == '.');
        trek_text_bytes(out, itself ? "_" : part, itself ? 1 : length);
        part += length;
        if (!*part)
            break;
        trek_text_add(out, "/");
    }
}

char *trek_mlflow_name(const char *name)
{
    trek_text clean = { 0 }, out = { 0 };
    for (const unsigned char *p = (const unsigned char *)name; *p;) {
        int bytes;
        bool good = taken(code_at(p, &bytes));
        if (clean.length + (size_t)bytes > LONGEST)
            break;
        trek_text_bytes(&clean, good ? (const char *)p : "_", good ? (size_t)bytes : 1);
        p += bytes;
    }
    settle_parts(&out, clean.data ? clean.data : "");
    trek_text_clear(&clean);
    return trek_text_take(&out);
}
