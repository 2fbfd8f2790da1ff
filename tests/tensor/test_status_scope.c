/* SPDX-License-Identifier: Apache-2.0 */
/* The sticky error of a thread, logging, and scopes. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "tensor/memory.h"
#include "tensor/status_internal.h"
#include "tensor/version.h"
#include "tests/support/refused.h"

static void first_error_sticks(void **state)
{
    trek_error_clear();
    assert_int_equal(trek_error_status(), TREK_OK);
    assert_string_equal(trek_error(), "");
    assert_int_equal(trek_fail(TREK_ERR_SHAPE, "first %d", 1), TREK_ERR_SHAPE);
    assert_int_equal(trek_fail(TREK_ERR_IO, "second"), TREK_ERR_IO);
    assert_int_equal(trek_error_status(), TREK_ERR_SHAPE);
    assert_string_equal(trek_error(), "first 1");
    trek_error_clear();
    assert_int_equal(trek_error_status(), TREK_OK);
    assert_string_equal(trek_error(), "");
}

static void long_messages_are_cut(void **state)
{
    char text[5000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    trek_fail(TREK_ERR_ARGUMENT, "%s", text);
    assert_true(strlen(trek_error()) > 100);
    assert_true(strlen(trek_error()) < sizeof text);
    trek_error_clear();
}

static void every_status_has_name_and_text(void **state)
{
#define CHECK(name, text)                                                      \
    assert_string_equal(trek_status_name(TREK_ERR_##name), "TREK_ERR_" #name); \
    assert_string_equal(trek_status_description(TREK_ERR_##name), text);
    TREK_STATUS_LIST(CHECK)
#undef CHECK
    assert_non_null(trek_status_description((trek_status)12345));
    assert_non_null(trek_status_name((trek_status)12345));
}

static void the_version_is_that_of_the_headers(void **state)
{
    char text[64];
    snprintf(text, sizeof text, "%d.%d.%d", TREK_VERSION_MAJOR, TREK_VERSION_MINOR, TREK_VERSION_PATCH);
    assert_string_equal(trek_version(), text);
}

static void *other_thread(void *arg)
{
    bool *fine = arg;
    *fine = trek_error_status() == TREK_OK;
    trek_fail(TREK_ERR_IO, "of the other thread");
    *fine = *fine && trek_error_status() == TREK_ERR_IO;
    return NULL;
}

static void errors_belong_to_threads(void **state)
{
    pthread_t thread;
    bool fine = false;
    trek_fail(TREK_ERR_SHAPE, "mine");
    assert_int_equal(pthread_create(&thread, NULL, other_thread, &fine), 0);
    pthread_join(thread, NULL);
    assert_true(fine);
    assert_string_equal(trek_error(), "mine");
    trek_error_clear();
}

static void errors_can_be_taken(void **state)
{
    trek_status status;
    char message[TREK_ERROR_SIZE];
    trek_fail(TREK_ERR_PEER, "rank %d", 3);
    trek_error_take(&status, message);
    assert_int_equal(status, TREK_ERR_PEER);
    assert_string_equal(message, "rank 3");
    assert_int_equal(trek_error_status(), TREK_OK);
}

static void an_error_put_back_is_the_same(void **state)
{
    int object;
    trek_kept_error none, kept, again;
    trek_error_clear();
    trek_error_keep(&none);
    trek_fail(TREK_ERR_SHAPE, "first");
    trek_error_place(&object, "block2", "conv2d");
    uint64_t number = trek_error_number();
    trek_error_keep(&kept);
    assert_int_equal(trek_error_status(), TREK_OK);
    trek_fail(TREK_ERR_IO, "another, cleared");
    assert_true(trek_error_number() != number);
    trek_error_clear();
    trek_error_put_back(&kept);
    assert_int_equal(trek_error_status(), TREK_ERR_SHAPE);
    assert_true(trek_error_number() == number && trek_error_where() == &object);
    trek_error_place(&object, "net.block2", "conv2d"); /* in place of what stood there */
    assert_string_equal(trek_error(), "net.block2 (conv2d): first");
    trek_error_put_back(&none); /* there was nothing: what is there stays */
    assert_int_equal(trek_error_status(), TREK_ERR_SHAPE);
    trek_error_keep(&again);
    trek_fail(TREK_ERR_IO, "later");
    trek_error_put_back(&again); /* the first, though it comes after */
    assert_int_equal(trek_error_status(), TREK_ERR_SHAPE);
    assert_true(trek_error_number() == number);
    trek_error_clear();
    trek_fail(TREK_ERR_SHAPE, "first"); /* the same text is another error, of a number that none has had */
    assert_true(trek_error_number() > number + 2);
    trek_error_clear();
}

/* --- logging ------------------------------------------------------------------------ */

static int logged;
static char last_log[256];

static void log_here(trek_log_level level, const char *message, void *arg)
{
    logged += level <= TREK_LOG_LEVEL_INFO;
    snprintf(last_log, sizeof last_log, "%s", message);
}

static void logging_has_levels(void **state)
{
    trek_log_set(TREK_LOG_LEVEL_INFO, log_here, NULL);
    logged = 0;
    trek_log_message(TREK_LOG_LEVEL_DEBUG, "not this");
    assert_int_equal(logged, 0);
    trek_log_message(TREK_LOG_LEVEL_INFO, "this %s", "one");
    assert_int_equal(logged, 1);
    assert_string_equal(last_log, "this one");
    trek_log_set(TREK_LOG_LEVEL_INFO, NULL, NULL);
    trek_log_message(TREK_LOG_LEVEL_ERROR, "nobody listens");
    assert_int_equal(logged, 1);
}

static void a_second_error_is_logged_once(void **state)
{
    trek_log_set(TREK_LOG_LEVEL_INFO, log_here, NULL);
    for (int round = 0; round < 2; round++) {
        logged = 0;
        trek_fail(TREK_ERR_SHAPE, "first");
        assert_int_equal(logged, 0);
        trek_fail(TREK_ERR_IO, "second %d", round);
        assert_int_equal(logged, 1);
        assert_non_null(strstr(last_log, round ? "second 1" : "second 0"));
        assert_non_null(strstr(last_log, "first"));
        trek_fail(TREK_ERR_IO, "third");
        assert_int_equal(logged, 1);
        assert_string_equal(trek_error(), "first");
        trek_error_clear();
    }
    trek_log_set(TREK_LOG_LEVEL_INFO, NULL, NULL);
}

/* --- scopes ---------------------------------------------------------------------------- */

static trek_var *one(void)
{
    return trek_var_from(trek_tensor_ones(trek_dims(2), TREK_F32, trek_cpu(0)));
}

static void results_end_with_their_scope(void **state)
{
    int64_t before = trek_memory_usage(trek_cpu(0)).allocated;
    trek_scope outer = trek_scope_begin();
    trek_var *kept = trek_var_retain(trek_add(one(), one()));
    trek_scope inner = trek_scope_begin();
    for (int k = 0; k < 1000; k++)
        assert_non_null(trek_add(one(), one()));
    assert_true(trek_memory_usage(trek_cpu(0)).allocated > before);
    assert_int_equal(trek_scope_end(inner), TREK_OK);
    assert_int_equal(trek_scope_end(outer), TREK_OK);
    assert_int_equal(trek_var_numel(kept), 2);
    float values[2];
    assert_int_equal(trek_tensor_to_host(trek_var_data(kept), TREK_F32, values, sizeof values), TREK_OK);
    assert_true(values[0] == 2 && values[1] == 2);
    trek_var_release(kept);
    assert_int_equal(trek_memory_usage(trek_cpu(0)).allocated, before);
}

static void an_op_needs_a_scope(void **state)
{
    trek_tensor *t = trek_tensor_ones(trek_dims(2), TREK_F32, trek_cpu(0));
    trek_var *x = trek_var_new(t, true);
    trek_tensor_release(t);
    assert_null(trek_exp(x));
    assert_int_equal(trek_error_status(), TREK_ERR_SCOPE);
    assert_int_equal(strncmp(trek_error(), "exp: ", 5), 0);
    trek_error_clear();
    trek_var_release(x);
}

static void ending_twice_is_an_error(void **state)
{
    trek_scope outer = trek_scope_begin(), inner = trek_scope_begin();
    assert_int_equal(trek_scope_end(outer), TREK_OK); /* ends inner, too */
    FAILS(trek_scope_end(inner), TREK_ERR_SCOPE, "");
    FAILS(trek_scope_end(outer), TREK_ERR_SCOPE, "");
    trek_scope again = trek_scope_begin(); /* same depth, another serial */
    FAILS(trek_scope_end(outer), TREK_ERR_SCOPE, "");
    assert_int_equal(trek_scope_end(again), TREK_OK);
}

static void a_result_can_be_kept(void **state)
{
    trek_scope outer = trek_scope_begin(), inner = trek_scope_begin();
    trek_var *sum = trek_add(one(), one());
    assert_ptr_equal(trek_scope_end_keep(inner, sum), sum);
    assert_int_equal(trek_var_numel(sum), 2);
    trek_scope middle = trek_scope_begin();
    assert_null(trek_scope_end_keep(middle, NULL));
    assert_int_equal(trek_scope_end(outer), TREK_OK);
    /* without an outer scope it is the caller's */
    trek_scope only = trek_scope_begin();
    trek_var *mine = trek_scope_end_keep(only, one());
    assert_int_equal(trek_var_numel(mine), 2);
    trek_var_release(mine);
    trek_error_clear();
}

static void deep_scopes(void **state)
{
    trek_scope scopes[500];
    for (int k = 0; k < 500; k++) {
        scopes[k] = trek_scope_begin();
        assert_non_null(one());
    }
    assert_int_equal(trek_scope_end(scopes[250]), TREK_OK);
    FAILS(trek_scope_end(scopes[499]), TREK_ERR_SCOPE, "");
    assert_int_equal(trek_scope_end(scopes[0]), TREK_OK);
}

static void a_childs_calls_are_refused(void **state)
{
    trek_scope scope = trek_scope_begin();
    assert_non_null(one());
    pid_t child = fork();
    if (child == 0) {
        trek_tensor *t = trek_tensor_ones(trek_dims(2), TREK_F32, trek_cpu(0));
        trek_var *x = t ? trek_var_new(t, false) : NULL;
        trek_var *y = x ? trek_exp(x) : NULL;
        _exit(y || trek_error_status() != TREK_ERR_STATE);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    trek_scope_end(scope);
}

/* Handles that nobody was given, those with a depth beyond an int's, too. */
static void handles_that_are_none(void **state)
{
    trek_error_clear();
    trek_scope scope = trek_scope_begin();
    const uint32_t depths[] = { 2, 100, 0x7fffffffu, 0x80000000u, 0x80000001u, 0xffffffffu };
    for (size_t k = 0; k < sizeof depths / sizeof depths[0]; k++)
        for (uint32_t serial = 0; serial < 3; serial++) {
            FAILS(trek_scope_end((trek_scope){ depths[k], scope.serial + serial }), TREK_ERR_SCOPE, "");
            REFUSED(trek_scope_end_keep((trek_scope){ depths[k], scope.serial + serial }, NULL), TREK_ERR_SCOPE, "");
        }
    assert_int_equal(trek_scope_end(scope), TREK_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_error_sticks), cmocka_unit_test(long_messages_are_cut),
        cmocka_unit_test(every_status_has_name_and_text), cmocka_unit_test(the_version_is_that_of_the_headers),
        cmocka_unit_test(errors_belong_to_threads), cmocka_unit_test(errors_can_be_taken),
        cmocka_unit_test(an_error_put_back_is_the_same), cmocka_unit_test(logging_has_levels),
        cmocka_unit_test(a_second_error_is_logged_once), cmocka_unit_test(results_end_with_their_scope),
        cmocka_unit_test(an_op_needs_a_scope), cmocka_unit_test(ending_twice_is_an_error), cmocka_unit_test(a_result_can_be_kept),
        cmocka_unit_test(deep_scopes), cmocka_unit_test(a_childs_calls_are_refused), cmocka_unit_test(handles_that_are_none),
    };
    return cmocka_run_group_tests_name("status and scope", tests, NULL, NULL);
}
