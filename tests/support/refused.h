/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that succeed, calls that are refused, and the error that these leave. */
#ifndef TREK_TESTS_SUPPORT_REFUSED_H
#define TREK_TESTS_SUPPORT_REFUSED_H

#include "tensor/log.h"
#include "tensor/status.h"
#include "tests/support/unit.h"

/* A case that failed leaves its error; the next begins without (setup of cmocka's). */
static inline int clear_error(void **state)
{
    trek_error_clear();
    return 0;
}

static inline void expect_no_error(void)
{
    if (trek_error_status() != TREK_OK)
        fail_msg("error: %s", trek_error());
}

/* Where the text has to stand: one that begins with a name, of a function or an argument, where a part of the message begins. */
static inline bool error_says(const char *text)
{
    size_t name = strspn(text, "abcdefghijklmnopqrstuvwxyz_0123456789");
    const char *error = trek_error(), *there = strstr(error, text);
    while (there && name > 0 && text[name] == ':' && there != error && there[-1] != ' ' && there[-1] != '.')
        there = strstr(there + 1, text);
    return there != NULL;
}

/* The thread's error is of that kind and says that; it is cleared. */
#define expect_error(status, text) expect_error_at(status, text, __LINE__)
static inline void expect_error_at(trek_status status, const char *text, int line)
{
    if (trek_error_status() != status || !error_says(text))
        fail_msg("line %d: the error is %s, \"%s\", not %s, \"%s\"", line, trek_status_name(trek_error_status()), trek_error(),
                 trek_status_name(status), text);
    trek_error_clear();
}

#define SUCCEEDS(call)                       \
    do {                                     \
        if ((call) != TREK_OK)               \
            fail_msg("%s", trek_error());    \
    } while (0)
/* A call that gives NULL, or a status, and leaves that error. */
#define REFUSED(call, status, text)  \
    do {                             \
        assert_null(call);           \
        expect_error(status, text);  \
    } while (0)
#define FAILS(call, status, text)        \
    do {                                 \
        assert_int_equal(call, status);  \
        expect_error(status, text);      \
    } while (0)

#endif
