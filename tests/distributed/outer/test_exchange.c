/* SPDX-License-Identifier: Apache-2.0 */
/* The mean over real processes, in full and in fewer bits: against a plain sum in f64, with unequal weights and none, the same
 * bits on all; mistakes of one process are errors of all. */
#include <signal.h>
#include <unistd.h>

#include "distributed/comm/comm_internal.h"
#include "distributed/outer/compress.h"
#include "distributed/outer/exchange.h"
#include "tests/support/processes.h"
#include "tests/support/refused.h"
#include "tests/support/support.h"

enum { MOST = 100000, ROUNDS = 3 };

static bool has(const part *me, const char *word) { return strstr(me->detail, word) != NULL; }

/* --- a process -------------------------------------------------------------------------------------- */

/* What process p gives in a round, which any process can tell. */
static float value_of(int p, int round, int64_t i) { return test_number((uint32_t)(10 * p + round), (uint32_t)i) + (float)p; }
static double weight_of(const part *me, int p) { return has(me, "equal") ? 1 : has(me, "zero") && p == 1 ? 0 : 1.5 + 2 * p; }

/* FNV-1a. */
static uint64_t hash_of(uint64_t hash, const float *values, int64_t n)
{
    const unsigned char *bytes = (const unsigned char *)values;
    for (int64_t k = 0; k < n * (int64_t)sizeof *values; k++)
        hash = (hash ^ bytes[k]) * 0x100000001b3u;
    return hash;
}

/* How far what came is from the mean, in units of what rounding once may do; feedback: the sum of the rounds is compared. */
static double apart(const part *me, double *sums, const float *got, int round, int64_t n, int bits, bool feedback)
{
    double worst = 0, total = 0, allowed = 1e-5,
        half_step = bits == 32 ? 0 : bits == 16 ? 1 / 256.0 : bits == 8 ? 0.5 / 127 : 0.5 / 7;
    for (int p = 0; p < me->processes; p++)
        total += weight_of(me, p);
    for (int p = 0; p < me->processes; p++) /* values and what was lost before */
        allowed += weight_of(me, p) / total * half_step * (1 + p) * (1 + half_step);
    for (int64_t i = 0; i < n; i++) {
        double mean = 0;
        for (int p = 0; p < me->processes; p++)
            mean += weight_of(me, p) > 0 ? weight_of(me, p) / total * (double)value_of(p, round, i) : 0;
        sums[i] = (feedback && round > 0 ? sums[i] : 0) + (double)got[i] - mean;
        worst = fmax(worst, isfinite(sums[i]) ? fabs(sums[i]) / allowed : INFINITY);
    }
    return worst;
}

static trek_status means(const part *me, trek_exchange *exchange, int bits, int64_t n, double *worst, uint64_t *hash)
{
    static float values[MOST], error[MOST];
    static double sums[MOST];
    bool feedback = n != 7; /* one size without */
    for (int64_t i = 0; i < MOST; i++)
        error[i] = weight_of(me, me->process) > 0 ? 0 : 0.5f; /* then it stays */
    for (int round = 0; round < ROUNDS; round++) {
        double weight = weight_of(me, me->process);
        for (int64_t i = 0; i < n; i++)
            values[i] = weight > 0 ? value_of(me->process, round, i) : NAN;
        int64_t before = exchange->sent, others = me->processes - 1;
        trek_status status = trek_exchange_mean(exchange, values, feedback ? error : NULL, n, bits, weight);
        if (status != TREK_OK)
            return status;
        int travelling = trek_exchange_bits(exchange, n, bits);
        int64_t bytes = others == 0 ? 0 : n == 0 ? 24 * others : travelling == 32 ? 24 * others + 8 * n * others / me->processes
            : others * (24 + trek_compress_bytes(n, bits));
        if (exchange->sent - before != bytes)
            return trek_fail(TREK_ERR_STATE, "it sent %d bytes for %d values in %d bits, not %d", (int)(exchange->sent - before),
                             (int)n, bits, (int)bytes);
        *worst = fmax(*worst, apart(me, sums, values, round, n, others == 0 ? 32 : travelling, feedback && travelling < 32));
        *hash = hash_of(*hash, values, n);
        if (weight == 0 && n > 0 && error[n - 1] != 0.5f)
            return trek_fail(TREK_ERR_STATE, "the error of a process of weight 0 is %g", (double)error[n - 1]);
    }
    return TREK_OK;
}

static trek_status all_means(const part *me, trek_exchange *exchange)
{
    static const int64_t sizes[] = { 0, 1, 7, MOST };
    double worst = 0;
    uint64_t hash = 0xcbf29ce484222325u;
    for (int bits = 4; bits <= 32; bits *= 2)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            trek_status status = means(me, exchange, bits, sizes[k], &worst, &hash);
            if (status != TREK_OK)
                return status;
        }
    printf("worst %g hash %llx\n", worst, (unsigned long long)hash);
    return TREK_OK;
}

/* One process's mistake; then a call as it should be. */
static trek_status mistake(const part *me, trek_exchange *exchange)
{
    float values[300], error[300] = { 0 };
    for (int i = 0; i < 300; i++)
        values[i] = (float)i;
    if (has(me, "kill"))
        kill(getpid(), SIGKILL);
    if (has(me, "leave")) { /* between the meeting and the data */
        struct { double weight; int64_t n; int32_t bits, status; } head = { 1, 300, 4, 0 };
        trek_comm_gather_bytes(exchange->comm, &head, sizeof head, exchange->heads);
        kill(getpid(), SIGKILL);
    }
    trek_status status = has(me, "decline") ? trek_exchange_decline(exchange, trek_fail(TREK_ERR_MEMORY, "no memory today"))
        : trek_exchange_mean(exchange, has(me, "no-values") ? NULL : values, error, has(me, "count") ? 200 : 300,
                             has(me, "bits") ? 5 : has(me, "eight") ? 8 : 4, has(me, "nan") ? NAN : has(me, "minus") ? -1
                             : has(me, "nothing") ? 0 : 1);
    printf("%s: %s\n", trek_status_name(status), trek_error());
    for (int i = 0; i < 300; i++)
        if (values[i] != (float)i || !(fabsf(error[i]) <= 1e-4f))
            printf("value %d is %g, error %g\n", i, (double)values[i], (double)error[i]);
    trek_error_clear();
    return status == TREK_ERR_PEER ? TREK_OK : trek_exchange_mean(exchange, values, error, 300, 4, 1);
}

static int play(const part *me)
{
    trek_exchange exchange = { 0 };
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .rank = me->process, .world_size = me->processes, .address = me->address,
                                                        .port = me->port, .token = "sesame", .deadline_s = 20 });
    trek_status status = comm ? trek_exchange_init(&exchange, comm) : trek_error_status();
    if (status == TREK_OK)
        status = has(me, "mistake") ? mistake(me, &exchange) : all_means(me, &exchange);
    if (status != TREK_OK)
        printf("%s: %s\n", trek_status_name(status), trek_error());
    trek_exchange_clear(&exchange);
    trek_comm_free(&comm);
    return status != TREK_OK;
}

/* --- the tests ---------------------------------------------------------------------------------------- */

static void run_world(world *w, int n, const char *detail, int victim, const char *of_victim)
{
    processes_run_all(w, n, "exchange", detail, victim, of_victim);
}

static void test_means(void **state)
{
    static world w;
    static const char *const kinds[] = { "equal", "unequal-weights", "zero" };
    for (int n = 1; n <= 4; n++)
        for (int k = 0; k < 3; k++) {
            run_world(&w, n, kinds[k], -1, NULL);
            for (int p = 0; p < n; p++) {
                double worst = 1e9;
                unsigned long long hash = 0, first = 0;
                int found = sscanf(w.text[p], "worst %lg hash %llx", &worst, &hash);
                sscanf(w.text[0], "worst %*g hash %llx", &first);
                if (w.code[p] != 0 || found != 2 || hash != first || !(worst <= 1))
                    processes_print(&w);
                assert_int_equal(w.code[p], 0);
                assert_int_equal(found, 2);
                assert_true(hash == first);
                assert_true(worst <= 1);
            }
        }
}

static void test_mistakes(void **state)
{
    static const struct { const char *all, *victim, *own, *others; } rows[] = {
        { "mistake", "mistake,count", "process 0 has 300 values in 4 bits, process 1 200", "process 1 200" },
        { "mistake", "mistake,eight", "process 1 300 in 8", "process 1 300 in 8" },
        { "mistake", "mistake,bits", "bits: 5; must be", "process 1 cannot take part: invalid argument" },
        { "mistake", "mistake,nan", "weight: nan", "TREK_ERR_ARGUMENT: exchange_mean: process 1" },
        { "mistake", "mistake,minus", "weight: -1", "process 1 cannot take part" },
        { "mistake", "mistake,no-values", "at NULL", "process 1 cannot take part" },
        { "mistake", "mistake,decline", "no memory today", "TREK_ERR_MEMORY: exchange_mean: process 1" },
        { "mistake,nothing", "mistake,nothing", "their sum over all processes is 0", "their sum over all processes is 0" },
        { "mistake", "mistake,kill", NULL, "process 1" },
        { "mistake", "mistake,leave", NULL, "process 1" },
    };
    static world w;
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        run_world(&w, 3, rows[k].all, 1, rows[k].victim);
        for (int p = 0; p < 3; p++) {
            const char *expected = p == 1 ? rows[k].own : rows[k].others;
            WANT(&w, expected ? w.code[p] == 0 && strstr(w.text[p], expected) &&
                 !strstr(w.text[p], "value ") : w.code[p] == -SIGKILL);
        }
    }
}

/* A process by itself: nothing travels, whatever the bits. */
static void test_alone(void **state)
{
    trek_exchange exchange;
    float values[3] = { 1, 1e-20f, NAN }, error[3] = { 5, 5, 5 };
    assert_int_equal(trek_exchange_init(&exchange, NULL), TREK_OK);
    assert_int_equal(trek_exchange_bits(&exchange, 3, 4), 32);
    assert_int_equal(trek_exchange_mean(&exchange, values, error, 3, 4, 0.3), TREK_OK);
    assert_true(values[0] == 1 && values[1] == 1e-20f && isnan(values[2]) && error[0] == 5 && exchange.sent == 0);
    FAILS(trek_exchange_mean(&exchange, values, error, 3, 4, 0), TREK_ERR_ARGUMENT, "");
    FAILS(trek_exchange_mean(&exchange, values, error, -3, 4, 1), TREK_ERR_ARGUMENT, "");
    assert_int_equal(trek_exchange_decline(&exchange, TREK_ERR_MEMORY), TREK_ERR_MEMORY);
    trek_exchange_clear(&exchange);
    trek_exchange_clear(&exchange);
    assert_int_equal(trek_error_status(), TREK_OK);
}

int main(void)
{
    part me;
    if (processes_part(&me))
        return play(&me);
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_alone), cmocka_unit_test(test_means),
                                        cmocka_unit_test(test_mistakes) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
