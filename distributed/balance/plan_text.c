/* SPDX-License-Identifier: Apache-2.0 */
/* Plans as text. Shares are hexadecimal floats as C's %a writes them. They are made from their bits and read into
 * them, so that they are exact and do not depend on the locale's decimal point. The last line has a checksum of
 * everything before it. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "distributed/balance/plan_internal.h"
#include "nn/checksum.h"
#include "nn/replace_file.h"
#include "nn/text.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

/* --- writing --------------------------------------------------------------------------- */

static void write_share(trek_text *out, double share)
{
    uint64_t bits;
    memcpy(&bits, &share, sizeof bits);
    if (share == 0)
        trek_text_add(out, " 0");
    else
        trek_text_format(out, " 0x1.%013" PRIx64 "p%d", bits & ((UINT64_C(1) << 52) - 1), (int)(bits >> 52) - 1023);
}

#define CHECKSUM " xxh64 "

static void write_checksum(trek_text *out)
{
    char digits[TREK_CHECKSUM_DIGITS];
    if (out->failed)
        return;
    trek_checksum_write(trek_checksum_of(out->data, out->length), digits);
    trek_text_bytes(out, digits, sizeof digits);
    trek_text_add(out, "\n");
}

static void write_plan(trek_text *out, const trek_plan *plan)
{
    trek_decision d;
    int ranks = trek_plan_ranks(plan);
    int64_t size = trek_plan_size(plan);
    trek_text_format(out, "trek-plan 2\nranks %d\n", ranks);
    for (int64_t k = 0; k < size && trek_plan_get(plan, k, &d); k++) {
        trek_text_format(out, "%" PRId64 " %s", d.from, d.kind == TREK_PLAN_KIND_SHARES ? "shares" : "counts");
        if (d.kind == TREK_PLAN_KIND_COUNTS)
            trek_text_format(out, " %" PRId64, d.anchor);
        for (int r = 0; r < ranks; r++) {
            if (d.kind == TREK_PLAN_KIND_SHARES)
                write_share(out, d.shares[r]);
            else
                trek_text_format(out, " %" PRId64, d.counts[r]);
        }
        trek_text_add(out, "\n");
    }
    trek_text_format(out, "end %" PRId64 CHECKSUM, size);
    write_checksum(out);
}

char *trek_plan_text(const trek_plan *plan)
{
    trek_text out = { 0 };
    if (!plan) {
        trek_fail_missing("plan_text", "plan");
        return NULL;
    }
    write_plan(&out, plan);
    return trek_text_take(&out);
}

/* --- reading --------------------------------------------------------------------------- */

typedef struct reader {
    const char *start, *at, *end, *name;
    int64_t line;
} reader;

static bool bad(const reader *in, const char *what)
{
    trek_fail(TREK_ERR_FORMAT, "%s: line %lld: %s", in->name, (long long)in->line, what);
    return false;
}

/* Skips `text` if the input continues with it. */
static bool passes(reader *in, const char *text)
{
    size_t length = strlen(text);
    if ((size_t)(in->end - in->at) < length || memcmp(in->at, text, length) != 0)
        return false;
    in->at += length;
    return true;
}

static bool line_ends(reader *in)
{
    if (!passes(in, "\n"))
        return bad(in, "the line should end here");
    in->line++;
    return true;
}

static bool read_integer(reader *in, int64_t *value)
{
    const char *from = in->at;
    *value = 0;
    for (; in->at < in->end && *in->at >= '0' && *in->at <= '9'; in->at++) {
        int digit = *in->at - '0';
        if (*value > (INT64_MAX - digit) / 10)
            return bad(in, "a number that is too large");
        *value = *value * 10 + digit;
    }
    return in->at > from || bad(in, "a number expected");
}

static bool read_share(reader *in, double *share)
{
    uint64_t bits = 0;
    int64_t exponent;
    *share = 0;
    if (!passes(in, "0x1."))
        return passes(in, "0") || bad(in, "a share as a hexadecimal float expected");
    for (int k = 0; k < 13; k++, in->at++) {
        char c = in->at < in->end ? *in->at : 0;
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
            return bad(in, "a share should have 13 hexadecimal digits");
        bits = bits << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    bool negative = passes(in, "p-");
    if (!negative && !passes(in, "p"))
        return bad(in, "a share should have an exponent");
    if (!read_integer(in, &exponent))
        return false;
    if (exponent > (negative ? 1022 : 0))
        return bad(in, "a share is out of range");
    bits |= (uint64_t)(1023 + (negative ? -exponent : exponent)) << 52;
    memcpy(share, &bits, sizeof bits);
    return true;
}

static bool read_decision(reader *in, trek_plan *plan, void *values)
{
    int64_t from, anchor = 0, *counts = values;
    double *shares = values;
    int ranks = trek_plan_ranks(plan);
    if (!read_integer(in, &from))
        return false;
    bool kind_shares = passes(in, " shares");
    if (!kind_shares && !passes(in, " counts"))
        return bad(in, "\" shares\" or \" counts\" expected");
    if (!kind_shares && !(passes(in, " ") && read_integer(in, &anchor)))
        return bad(in, "an anchor expected");
    for (int r = 0; r < ranks; r++) {
        if (!passes(in, " "))
            return bad(in, "a value is missing");
        if (!(kind_shares ? read_share(in, &shares[r]) : read_integer(in, &counts[r])))
            return false;
    }
    trek_decision last;
    int64_t size = trek_plan_size(plan);
    const char *fault = kind_shares ? trek_plan_shares_fault(shares, ranks) : trek_plan_counts_fault(counts, ranks, anchor);
    if (size > 0 && trek_plan_get(plan, size - 1, &last) && from <= last.from)
        fault = "the steps do not ascend";
    if (fault)
        return bad(in, fault);
    trek_status status = kind_shares ? trek_plan_add_shares(plan, from, shares)
        : trek_plan_add_counts(plan, from, counts, anchor);
    return status == TREK_OK && line_ends(in);
}

/* Checks the checksum before the first line is believed. The last line must be " xxh64 " and digits. */
static bool checksum_holds(const reader *in)
{
    static const char mark[] = CHECKSUM;
    size_t tail = sizeof mark - 1 + TREK_CHECKSUM_DIGITS + 1, length = (size_t)(in->end - in->start);
    const char *from = length > tail ? in->end - tail : NULL, *digits = from ? from + sizeof mark - 1 : NULL;
    uint64_t noted;
    if (!from || memcmp(from, mark, sizeof mark - 1) != 0 || in->end[-1] != '\n' || !trek_checksum_read(digits, &noted))
        return trek_fail(TREK_ERR_FORMAT, "%s: the checksum is missing: the plan is cut off or damaged", in->name) == TREK_OK;
    if (!trek_checksum_holds(trek_checksum_of(in->start, (size_t)(digits - in->start)), noted))
        return trek_fail(TREK_ERR_FORMAT, "%s: the checksum does not match: the plan is damaged", in->name) == TREK_OK;
    return true;
}

static bool passes_checksum(reader *in)
{
    if (!passes(in, CHECKSUM) || in->end - in->at < TREK_CHECKSUM_DIGITS)
        return bad(in, "a checksum expected");
    in->at += TREK_CHECKSUM_DIGITS;
    return true;
}

static bool read_decisions(reader *in, trek_plan *plan)
{
    void *values = trek_calloc((size_t)trek_plan_ranks(plan), 8);
    int64_t size;
    bool good = values != NULL;
    while (good && !passes(in, "end "))
        good = read_decision(in, plan, values);
    trek_free(values);
    if (!good || !read_integer(in, &size) || !passes_checksum(in) || !line_ends(in))
        return false;
    if (size != trek_plan_size(plan))
        return bad(in, "decisions are missing or too many");
    return in->at == in->end || bad(in, "text after the end");
}

static bool read_version(reader *in)
{
    if (!passes(in, "trek-plan "))
        return bad(in, "no plan: \"trek-plan 2\" expected");
    if (!passes(in, "2\n"))
        return bad(in, "a version other than 2");
    in->line++;
    return checksum_holds(in);
}

trek_plan *trek_plan_parse_named(const char *text, size_t length, const char *name)
{
    reader in = { .start = text, .at = text, .end = text + length, .name = name, .line = 1 };
    int64_t ranks;
    if (trek_error_status() != TREK_OK)
        return NULL;
    if (!read_version(&in))
        return NULL;
    if (!passes(&in, "ranks ")) {
        bad(&in, "\"ranks\" expected");
        return NULL;
    }
    if (!read_integer(&in, &ranks) || !line_ends(&in))
        return NULL;
    if (ranks < 1 || ranks > TREK_PLAN_MOST_RANKS) {
        bad(&in, "a number of ranks out of range");
        return NULL;
    }
    trek_plan *plan = trek_plan_new((int)ranks);
    if (plan && !read_decisions(&in, plan))
        trek_plan_free(&plan);
    return plan;
}

trek_plan *trek_plan_parse(const char *text)
{
    if (text)
        return trek_plan_parse_named(text, strlen(text), "plan");
    trek_fail_missing("plan_parse", "text");
    return NULL;
}

/* --- files ----------------------------------------------------------------------------- */

static trek_status write_all(int file, const char *from, size_t bytes, const char *path)
{
    while (bytes > 0) {
        ssize_t put = write(file, from, bytes);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return trek_fail_system(path, "write");
        from += put;
        bytes -= (size_t)put;
    }
    return TREK_OK;
}

trek_status trek_plan_save(const trek_plan *plan, const char *path)
{
    trek_file_replacement replacement;
    if (!plan || !path)
        return trek_fail_missing("plan_save", plan ? "path" : "plan");
    char *text = trek_plan_text(plan);
    trek_status status = text ? trek_replace_begin(&replacement, path) : TREK_ERR_MEMORY;
    if (status == TREK_OK)
        status = trek_replace_end(&replacement, write_all(replacement.file, text, strlen(text), path));
    trek_free(text);
    return status;
}

static trek_status read_file(int file, trek_text *out, const char *path)
{
    char buffer[4096];
    for (;;) {
        ssize_t got = read(file, buffer, sizeof buffer);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return trek_fail_system(path, "read");
        if (got == 0)
            break;
        trek_text_bytes(out, buffer, (size_t)got);
    }
    return out->failed ? TREK_ERR_MEMORY : TREK_OK;
}

trek_plan *trek_plan_load(const char *path)
{
    trek_text text = { 0 };
    if (!path) {
        trek_fail_missing("plan_load", "path");
        return NULL;
    }
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        trek_fail_system(path, "open");
        return NULL;
    }
    trek_status status = read_file(file, &text, path);
    close(file);
    trek_plan *plan = status == TREK_OK ? trek_plan_parse_named(text.data ? text.data : "", text.length, path) : NULL;
    trek_text_clear(&text);
    return plan;
}
