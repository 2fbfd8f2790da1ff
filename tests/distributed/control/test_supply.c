/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that several suppliers have and one process fetches: from all at the same time, and from those that are left when some
 * die, stand still, or belong to nobody's job. */
#include <pthread.h>
#include <unistd.h>

#include "distributed/control/supply.h"
#include "distributed/system/socket.h"
#include "tensor/trace.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { SUPPLIERS = 3, PARTS = 5, BYTES = 40 << 20 };

static char *memory, *copies[SUPPLIERS], *fetched;

static char byte_of(int64_t at) { return (char)(at * 2654435761 >> 7); }

static int make_memory(void **state)
{
    memory = malloc(BYTES);
    fetched = malloc(BYTES);
    if (!memory || !fetched)
        return -1;
    for (int64_t k = 0; k < BYTES; k++)
        memory[k] = byte_of(k);
    return 0;
}

static int free_memory(void **state)
{
    free(memory);
    free(fetched);
    return 0;
}

/* Supplies memory in parts of unequal lengths, of which one is empty. */
static trek_supply *supply(const char *bytes, const char *token, int number)
{
    static const int ends[PARTS] = { 10, 10, 3 << 20, (3 << 20) + 77, BYTES };
    struct iovec parts[PARTS];
    for (int k = 0, from = 0; k < PARTS; from = ends[k++])
        parts[k] = (struct iovec){ (char *)(uintptr_t)bytes + from, (size_t)(ends[k] - from) };
    trek_supply *made = trek_supply_new("127.0.0.1", token, number, parts, PARTS);
    assert_non_null(made);
    return made;
}

static trek_supplier at(int port)
{
    trek_supplier supplier = { .port = port };
    strcpy(supplier.address, "127.0.0.1");
    return supplier;
}

static const trek_supply_range most[] = { { 0, 5 }, { 9, (3 << 20) + 1 }, { (3 << 20) + 70, BYTES } };

static trek_status fetch(const trek_supplier *suppliers, int n, const trek_supply_range *ranges, int n_ranges, double seconds)
{
    memset(fetched, 0, BYTES);
    return trek_supply_fetch(&(trek_supply_fetching){ .token = "sesame", .number = 7, .suppliers = suppliers, .n_suppliers = n,
                                                      .ranges = ranges, .n_ranges = n_ranges, .memory = fetched,
                                                      .quiet_ns = (int64_t)(seconds * 1e9) });
}

/* All that was asked for is there, and nothing else. */
static void expect_fetched(const trek_supply_range *ranges, int n)
{
    int64_t at = 0;
    for (int k = 0; k <= n; k++) {
        int64_t begin = k < n ? ranges[k].begin : BYTES, end = k < n ? ranges[k].end : BYTES;
        for (; at < begin; at++)
            assert_true(fetched[at] == 0);
        assert_memory_equal(fetched + begin, memory + begin, (size_t)(end - begin));
        at = end;
    }
}

static bool never(void *arg) { return false; }

/* Returns the fewest bytes that one of them has sent. */
static int64_t fetch_from_all(const trek_supplier *suppliers)
{
    const trek_supply_range all = { 0, BYTES };
    int64_t counts[SUPPLIERS] = { 0 }, least = BYTES;
    assert_int_equal(fetch(suppliers, SUPPLIERS, &all, 1, 30), TREK_OK);
    for (int64_t k = 0; k < BYTES; k++) {
        assert_in_range(fetched[k], 1, SUPPLIERS);
        counts[fetched[k] - 1]++;
    }
    for (int k = 0; k < SUPPLIERS; k++)
        least = counts[k] < least ? counts[k] : least;
    return least;
}

static void each_supplier_sends_a_part(void **state)
{
    trek_supply *supplies[SUPPLIERS];
    trek_supplier suppliers[SUPPLIERS];
    int64_t least = 0;
    for (int k = 0; k < SUPPLIERS; k++) {
        copies[k] = malloc(BYTES);
        assert_non_null(copies[k]);
        memset(copies[k], 1 + k, BYTES);
        supplies[k] = supply(copies[k], "sesame", k);
        suppliers[k] = at(trek_supply_port(supplies[k]));
    }
    for (double since = 0; least < BYTES / 100 && test_wait(&since);) /* one that is late may find that all has been sent */
        least = fetch_from_all(suppliers);
    assert_true(least >= BYTES / 100);
    for (int k = 0; k < SUPPLIERS; k++) {
        trek_supply_await(supplies[k], 7, 0, never, NULL); /* it has come, and has gone */
        trek_supply_free(&supplies[k]);
        free(copies[k]);
    }
}

static void ranges_go_to_their_places(void **state)
{
    trek_supply *one = supply(memory, "sesame", 0);
    const trek_supplier suppliers[] = { at(trek_supply_port(one)) };
    assert_int_equal(fetch(suppliers, 1, most, 3, 30), TREK_OK);
    expect_fetched(most, 3);
    assert_int_equal(fetch(suppliers, 1, most, 0, 30), TREK_OK); /* of which the supplier hears, too */
    trek_supply_await(one, 7, 0, never, NULL);
    trek_supply_free(&one);
}

/* --- suppliers that do not supply ---------------------------------------------------------------------- */

/* Ends a supply while somebody fetches from it. */
static void *end_soon(void *arg)
{
    trek_supply **dying = arg;
    usleep(2000);
    trek_supply_free(dying);
    return NULL;
}

static void others_send_what_the_dead_had_promised(void **state)
{
    for (int round = 0; round < 5; round++) {
        pthread_t thread;
        trek_supply *lives = supply(memory, "sesame", 0), *dies = supply(memory, "sesame", 1);
        const trek_supplier suppliers[] = { at(trek_supply_port(dies)), at(trek_supply_port(lives)) };
        assert_int_equal(pthread_create(&thread, NULL, end_soon, &dies), 0);
        assert_int_equal(fetch(suppliers, 2, most, 3, 30), TREK_OK);
        pthread_join(thread, NULL);
        expect_fetched(most, 3);
        trek_supply_free(&lives);
    }
}

/* One that stands still lets connections wait, and one is of another job. */
static void others_send_what_the_silent_have(void **state)
{
    int silent, port;
    trek_supply *lives = supply(memory, "sesame", 0), *foreign = supply(memory, "open", 1);
    assert_int_equal(trek_socket_listen("127.0.0.1", 0, &silent, &port), TREK_OK);
    const trek_supplier suppliers[] = { at(port), at(trek_supply_port(foreign)), at(trek_supply_port(lives)) };
    assert_int_equal(fetch(suppliers, 3, most, 3, 30), TREK_OK);
    expect_fetched(most, 3);
    assert_int_equal(fetch(suppliers, 2, most, 3, 0.3), TREK_ERR_TIMEOUT);
    expect_error(TREK_ERR_TIMEOUT, "trainer_setup: nobody has sent more of the job's state for 0 s");
    assert_int_equal(fetch(suppliers + 1, 1, most, 3, 30), TREK_ERR_PEER);
    expect_error(TREK_ERR_PEER, "trainer_setup: the processes of the job that had its state have died");
    trek_supply_free(&lives);
    trek_supply_free(&foreign);
    trek_socket_close(silent);
}

/* A supplier that has taken two requests, and stands still in the first one's answer. */
typedef struct sluggard {
    trek_supply *whole;
    int listening, port;
} sluggard;

/* Passes a connection on to a supplier, and stops after a megabyte, or when all have come from others before that. */
static void *pass_on(void *arg)
{
    sluggard *s = arg;
    char why[200], *room = malloc(1 << 16);
    int64_t passed = 0, got = 0;
    int near = -1, far = trek_socket_connect("127.0.0.1", trek_supply_port(s->whole), trek_clock_ns() + 5000000000, NULL, NULL,
                                             why,
                                             sizeof why);
    for (double since = 0; near < 0 && test_wait(&since);)
        near = trek_socket_accept(s->listening, NULL, NULL);
    for (double since = 0; room && got >= 0 && passed < 1 << 20 && test_wait(&since);) {
        struct iovec part = { room, 0 };
        if ((got = trek_socket_receive(near, room, 1 << 16)) > 0) {
            part.iov_len = (size_t)got;
            trek_socket_send(far, &part, 1);
        }
        if (got >= 0 && (got = trek_socket_receive(far, room, 1 << 16)) > 0) {
            part = (struct iovec){ room, (size_t)got };
            while (part.iov_len > 0 && trek_socket_send(near, &part, 1) >= 0)
                ;
            passed += got;
        }
    }
    free(room);
    s->port = near; /* both stay open */
    return (void *)(intptr_t)far;
}

static void others_send_what_stands_still(void **state)
{
    pthread_t thread;
    void *far;
    sluggard s = { .whole = supply(memory, "sesame", 1) };
    assert_int_equal(trek_socket_listen("127.0.0.1", 0, &s.listening, &s.port), TREK_OK);
    trek_supply *lives = supply(memory, "sesame", 0);
    const trek_supplier suppliers[] = { at(s.port), at(trek_supply_port(lives)) };
    assert_int_equal(pthread_create(&thread, NULL, pass_on, &s), 0);
    assert_int_equal(fetch(suppliers, 2, most, 3, 30), TREK_OK);
    expect_fetched(most, 3);
    pthread_join(thread, &far);
    trek_socket_close(s.port);
    trek_socket_close((int)(intptr_t)far);
    trek_socket_close(s.listening);
    trek_supply_free(&lives);
    trek_supply_free(&s.whole);
}

/* --- what a supplier waits for, and what it does not answer --------------------------------------------- */

static bool at_once(void *arg) { return ++*(int *)arg > 1; }

static void a_supplier_waits_for_who_may_still_come(void **state)
{
    int asked = 0;
    trek_supply *one = supply(memory, "sesame", 0);
    trek_supply_await(one, 7, 0, at_once, &asked);
    assert_int_equal(asked, 2);
    int64_t begun = trek_clock_ns();
    trek_supply_await(one, 7, 200000000, never, NULL);
    assert_true(trek_clock_ns() - begun >= 200000000);
    trek_supply_free(&one);
}

/* Sends a request to a supplier; returns whether the connection lives. */
static bool is_answered(const trek_supply *one, trek_supply_request note, bool sealed)
{
    char why[200], in[sizeof(trek_handshake_note)];
    trek_hmac_key secret;
    trek_hmac_key_of("sesame", 6, &secret);
    const trek_identity own = { .secret = &secret, .role = TREK_ROLE_SUPPLY, .process = 9 };
    trek_seal seal = { 0 };
    int fd = trek_socket_connect("127.0.0.1", trek_supply_port(one), trek_clock_ns() + 5000000000, NULL, NULL, why, sizeof why);
    assert_true(fd >= 0 && trek_seal_call(&seal, &own, fd));
    size_t used = 0, taken;
    for (double since = 0; !trek_seal_is_open(&seal) && test_wait(&since);) {
        int64_t got = trek_socket_receive(fd, in + used, sizeof in - used);
        assert_true(got >= 0);
        used += (size_t)got;
        trek_seal_shake(&seal, &own, fd, in, used, &taken);
        used -= taken;
    }
    struct iovec part = { &note, offsetof(trek_supply_request, code) };
    trek_seal_sign(&seal, &part, 1, note.code);
    note.code[3] ^= !sealed;
    part = (struct iovec){ &note, sizeof note };
    assert_int_equal(trek_socket_send(fd, &part, 1), sizeof note);
    int64_t got = 0;
    for (double since = 0; got == 0 && test_wait(&since);)
        got = trek_socket_receive(fd, in, sizeof in);
    trek_socket_close(fd);
    return got > 0;
}

static void other_requests_end_the_connection(void **state)
{
    trek_supply *one = supply(memory, "sesame", 0);
    const int64_t far = INT64_MAX;
    assert_true(is_answered(one, (trek_supply_request){ .begin = BYTES - 2, .bytes = 2 }, true));
    assert_false(is_answered(one, (trek_supply_request){ .begin = BYTES - 2, .bytes = 2 }, false));
    const trek_supply_request others[] = { { .begin = BYTES - 2, .bytes = 3 }, { .begin = -1, .bytes = 3 }, { .bytes = 0 },
                                           { .begin = 5, .bytes = -1 }, { .begin = far, .bytes = far },
                                           { .begin = far, .bytes = 1 },
                                           { .begin = 1, .bytes = far } };
    for (size_t k = 0; k < sizeof others / sizeof *others; k++)
        assert_false(is_answered(one, others[k], true));
    trek_supply_free(&one);
}

/* Those that say nothing do not keep others out. */
static void strangers_make_room(void **state)
{
    char why[200];
    enum { STRANGERS = 70 };
    int fds[STRANGERS];
    trek_supply *one = supply(memory, "sesame", 0);
    const trek_supplier suppliers[] = { at(trek_supply_port(one)) };
    for (int k = 0; k < STRANGERS; k++)
        fds[k] = trek_socket_connect("127.0.0.1", suppliers[0].port, trek_clock_ns() + 5000000000, NULL, NULL, why, sizeof why);
    assert_int_equal(fetch(suppliers, 1, most, 1, 4), TREK_OK); /* they may keep their places for 5 s */
    for (int k = 0; k < STRANGERS; k++)
        trek_socket_close(fds[k]);
    trek_supply_free(&one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(each_supplier_sends_a_part, clear_error),
        cmocka_unit_test_setup(ranges_go_to_their_places, clear_error),
        cmocka_unit_test_setup(others_send_what_the_dead_had_promised, clear_error),
        cmocka_unit_test_setup(others_send_what_the_silent_have, clear_error),
        cmocka_unit_test_setup(others_send_what_stands_still, clear_error),
        cmocka_unit_test_setup(a_supplier_waits_for_who_may_still_come, clear_error),
        cmocka_unit_test_setup(other_requests_end_the_connection, clear_error),
        cmocka_unit_test_setup(strangers_make_room, clear_error),
    };
    return cmocka_run_group_tests(tests, make_memory, free_memory);
}
