/* SPDX-License-Identifier: Apache-2.0 */
/* A folder for what is watched (setup and teardown of cmocka's), and what was written there. */
#ifndef TREK_TESTS_WATCHING_H
#define TREK_TESTS_WATCHING_H

#include <unistd.h>

#include "monitor/viewer/run_reader.h"
#include "tensor/status.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

static char folder[64];

static inline int begin(void **state)
{
    trek_error_clear();
    snprintf(folder, sizeof folder, "/tmp/trek-watched-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static inline int end(void **state) { return test_remove(folder) != 0 || trek_error_status() != TREK_OK; }

/* Reads what a run has written so far, and all of it well. */
static inline trek_run_reader *read_run(const char *name)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    trek_run_reader *r = trek_run_reader_new(path, NULL);
    assert_non_null(r);
    assert_int_equal(trek_run_reader_catch_up(r), TREK_OK);
    assert_int_equal(trek_run_reader_state(r)->bad_lines, 0);
    return r;
}

#endif
