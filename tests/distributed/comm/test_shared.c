/* SPDX-License-Identifier: Apache-2.0 */
/* The engine between processes of one machine. The program starts itself again as the
 * ranks of a job; each checks its results against plain loops and tells the parent what
 * it saw, in a line through a pipe. Peers are killed, stopped, and end at any time. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "distributed/comm/shared/shared.h"
#include "distributed/trainer.h"
#include "graph/flow.h"
#include "nn/layers.h"
#include "tensor/tensor_internal.h"
#include "tests/distributed/comm/reductions.h"
#include "tests/support/left.h"
#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { MAX_WORLD = 5, CHUNK = 256 << 10, DEADLINE_S = 3 }; /* longer than anybody is kept from the machine by others */

static void sleep_ms(int ms) { nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000L }, NULL); }

/* --- in a rank -------------------------------------------------------------------- */

typedef struct rank_of {
    trek_control *control;
    trek_comm *comm;
    int rank, world, arg;
    char wrong[256]; /* first thing that was not as it should be */
} rank_of;

static bool check(rank_of *r, bool good, const char *what, long long a, long long b)
{
    if (!good && r->wrong[0] == '\0')
        snprintf(r->wrong, sizeof r->wrong, "%s (%lld, %lld): %.120s", what, a, b, trek_error());
    return good;
}

static trek_tensor *part_of(trek_tensor *tensor, int64_t first, int64_t count)
{
    static const int64_t dense[] = { 1 };
    return trek_tensor_make_view(tensor, tensor->data + (size_t)first * trek_dtype_size((trek_dtype)tensor->dtype), 1, &count,
                                 dense);
}

/* `lead` elements more in front of it, so that memory is not aligned. */
static trek_tensor *make_values(trek_dtype dtype, int rank, int64_t count, int64_t lead)
{
    trek_tensor *own = rank_values(dtype, rank, -lead, count + lead);
    trek_tensor *part = lead ? part_of(own, lead, count) : trek_tensor_retain(own);
    trek_tensor_release(own);
    return part;
}

static void reduce_once(rank_of *r, trek_dtype dtype, trek_reduction op, int64_t count)
{
    trek_tensor *tensor = make_values(dtype, r->rank, count, count % 3),
        *expected = combined_values(dtype, op, r->world, 0, count);
    check(r, trek_comm_all_reduce(r->comm, tensor, op) == TREK_OK && same_bytes(tensor, expected), "all_reduce",
          dtype * 10 + (int)op,
          count);
    trek_tensor_release(tensor);
    int root = (int)(count + (int64_t)op) % r->world;
    tensor = make_values(dtype, r->rank, count, 0);
    trek_tensor *own = r->rank == root ? expected : make_values(dtype, r->rank, count, 0);
    trek_comm_call call = { .kind = TREK_COMM_REDUCE, .op = op, .root = root, .dtype = dtype, .count = count, .in = tensor->data,
                            .out = tensor->data };
    check(r, trek_comm_run(r->comm, call) == TREK_OK && same_bytes(tensor, own), "reduce", dtype * 10 + (int)op, count);
    if (own != expected)
        trek_tensor_release(own);
    trek_tensor_release(tensor);
    trek_tensor_release(expected);
    tensor = make_values(dtype, r->rank, count * r->world, 0);
    expected = combined_values(dtype, op, r->world, count * r->rank, count);
    trek_tensor *part = trek_tensor_zeros(trek_shape_make(&count, 1), dtype, trek_cpu(0));
    check(r, trek_comm_reduce_scatter(r->comm, tensor, part, op) == TREK_OK && same_bytes(part, expected), "reduce_scatter",
          dtype * 10 + (int)op, count);
    trek_tensor_release(tensor);
    trek_tensor_release(expected);
    trek_tensor_release(part);
}

static void case_reductions(rank_of *r)
{
    for (int d = 0; d < TREK_DTYPE_COUNT; d++) {
        trek_dtype dtype = (trek_dtype)d;
        int64_t size = (int64_t)trek_dtype_size(dtype), chunk = CHUNK / size;
        int64_t counts[] = { 15, 3 * chunk + 7, 0, 1, 64 / size, 64 / size + 1, chunk - 1, chunk, chunk + 1 };
        for (int op = TREK_REDUCTION_MEAN; op <= TREK_REDUCTION_PROD; op++) {
            bool allowed = op_fits(dtype, (trek_reduction)op);
            bool all = op == TREK_REDUCTION_SUM && (d == TREK_F32 || d == TREK_BF16);
            bool large = all || (op == TREK_REDUCTION_SUM && d != TREK_F64) || (op == TREK_REDUCTION_MEAN && d == TREK_F16) ||
                d == TREK_BOOL;
            for (int k = 0; allowed && k < (all ? 9 : large ? 2 : 1); k++)
                if (k != 1 || r->world == 3 || all) /* the long one is for one world */
                    reduce_once(r, dtype, (trek_reduction)op, counts[k]);
        }
    }
}

static void case_moves(rank_of *r)
{
    static const int64_t counts[] = { 0, 1, 16, 17, CHUNK / 4 - 1, CHUNK / 4, CHUNK / 4 + 1, 3 * CHUNK / 4 + 7 };
    for (int k = 0; k < 8; k++) {
        int64_t count = counts[k], total = count * r->world;
        for (int root = 0; root < r->world; root++) {
            trek_tensor *tensor = make_values(TREK_F32, r->rank, count, 0), *expected = make_values(TREK_F32, root, count, 0);
            check(r, trek_comm_broadcast(r->comm, tensor, root) == TREK_OK && same_bytes(tensor, expected), "broadcast", root,
                  count);
            trek_tensor_release(tensor);
            trek_tensor_release(expected);
        }
        trek_tensor *part = make_values(TREK_F32, r->rank, count, 0),
                    *all = trek_tensor_zeros(trek_shape_make(&total, 1), TREK_F32, trek_cpu(0));
        check(r, trek_comm_all_gather(r->comm, part, all) == TREK_OK, "all_gather", count, 0);
        for (int q = 0; q < r->world && count; q++) {
            trek_tensor *expected = make_values(TREK_F32, q, count, 0);
            check(r, memcmp(all->data + 4 * q * count, expected->data, (size_t)(4 * count)) == 0, "all_gather", q, count);
            trek_tensor_release(expected);
        }
        trek_tensor_release(part);
        trek_tensor_release(all);
    }
}

/* --- against threads: the same bits --- */

typedef struct thread_rank {
    trek_comm *comm;
    trek_tensor *tensor;
    trek_reduction op;
    trek_status status;
} thread_rank;

static void *thread_main(void *arg)
{
    thread_rank *t = arg;
    t->status = trek_comm_all_reduce(t->comm, t->tensor, t->op);
    return NULL;
}

static trek_tensor *by_threads(trek_dtype dtype, trek_reduction op, int world, int64_t count)
{
    trek_comm *comms[MAX_WORLD];
    thread_rank ranks[MAX_WORLD];
    pthread_t threads[MAX_WORLD];
    bool good = trek_comm_local(NULL, world, comms) == TREK_OK;
    for (int r = 0; r < world && good; r++) {
        ranks[r] = (thread_rank){ comms[r], make_values(dtype, r, count, 0), op, TREK_OK };
        pthread_create(&threads[r], NULL, thread_main, &ranks[r]);
    }
    for (int r = 0; r < world && good; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < world && good; r++) {
        trek_comm_free(&comms[r]);
        if (r > 0)
            trek_tensor_release(ranks[r].tensor);
    }
    return good && ranks[0].status == TREK_OK ? ranks[0].tensor : NULL;
}

/* A copy in the engine's own memory. */
static trek_tensor *in_window(rank_of *r, trek_tensor *values)
{
    trek_tensor *own = trek_comm_zeros(r->comm, trek_tensor_shape(values), (trek_dtype)values->dtype, trek_cpu(0));
    if (check(r, own && trek_tensor_copy_from(own, values) == TREK_OK, "memory of the engine's own", 0, 0))
        trek_tensor_release(values);
    return own;
}

/* Where the arrays lie: in the engine's memory on no rank, on all, on all but rank 1, or not even there. */
enum { ORDINARY, OWN, MIXED, REFUSED };

/* Every rank gets its part of the combination, and then the parts of all: what lies in the window is read there. */
static void parts_once(rank_of *r, trek_tensor *tensor, const trek_tensor *expected, trek_reduction op)
{
    trek_dtype dtype = (trek_dtype)tensor->dtype;
    int64_t count = tensor->numel / r->world, total = count * r->world;
    size_t bytes = (size_t)count * trek_dtype_size(dtype);
    trek_tensor *all = part_of(tensor, 0, total), *own = part_of(tensor, r->rank * count, count),
                *part = trek_tensor_zeros(trek_shape_make(&count, 1), dtype, trek_cpu(0)),
                *gathered = trek_tensor_zeros(trek_shape_make(&total, 1), dtype, trek_cpu(0));
    check(r, trek_comm_reduce_scatter(r->comm, all, part, op) == TREK_OK && expected &&
          memcmp(part->data, expected->data + (size_t)r->rank * bytes, bytes) == 0, "scatter", dtype, count);
    check(r, trek_comm_all_gather(r->comm, own, gathered) == TREK_OK, "gather", dtype, count);
    for (int q = 0; q < r->world; q++) {
        trek_tensor *theirs = make_values(dtype, q, total, 0);
        check(r, memcmp(gathered->data + (size_t)q * bytes, theirs->data + (size_t)q * bytes, bytes) == 0, "gather", q, count);
        trek_tensor_release(theirs);
    }
    trek_tensor_release(all);
    trek_tensor_release(own);
    trek_tensor_release(part);
    trek_tensor_release(gathered);
}

static void case_same_bits(rank_of *r)
{
    static const struct {
        trek_dtype dtype;
        trek_reduction op;
    } kinds[] = {
        { TREK_F32, TREK_REDUCTION_SUM }, { TREK_F32, TREK_REDUCTION_MEAN }, { TREK_BF16, TREK_REDUCTION_MEAN },
            { TREK_F64, TREK_REDUCTION_PROD }, { TREK_I32, TREK_REDUCTION_SUM }
    };
    uint64_t direct = 0;
    for (int k = 0; k < 5; k++)
        for (int64_t count = 150000; count < 500000; count += test_short() ? 340001 : 170001) {
            trek_tensor *expected = by_threads(kinds[k].dtype, kinds[k].op, r->world, count);
            int64_t lead = 1 + 700 * r->rank + k; /* every rank's begin elsewhere */
            trek_tensor *start = make_values(kinds[k].dtype, r->rank, count, lead),
                        *whole = make_values(kinds[k].dtype, r->rank, count + lead, 0);
            if (r->arg != ORDINARY && (r->arg != MIXED || r->rank != 1))
                whole = in_window(r, whole);
            trek_tensor *tensor = part_of(whole, lead, count);
            size_t bytes = (size_t)count * trek_dtype_size(kinds[k].dtype);
            for (int time = 0; time < 4; time++) {
                memcpy(tensor->data, start->data, bytes);
                check(r, trek_comm_all_reduce(r->comm, tensor, kinds[k].op) == TREK_OK && expected &&
                      same_bytes(tensor, expected),
                      "bits", k, time);
            }
            memcpy(tensor->data, start->data, bytes);
            parts_once(r, tensor, expected, kinds[k].op);
            trek_tensor_release(tensor);
            trek_tensor_release(whole);
            trek_tensor_release(start);
            trek_tensor_release(expected);
            uint64_t before = direct;
            direct = trek_comm_shared_direct(r->comm);
            check(r, r->arg == OWN ? direct - before == 6 : direct == 0, "which way", (long long)(direct - before), k);
        }
}

/* Arrays that come and go, of which parts are reduced: they hold zeros each time, and memory of the system's is its own. */
static void case_come_and_go(rank_of *r)
{
    for (int k = 0; k < 30; k++) {
        int64_t count = 70000 + 30011 * (k % 7), half = count / 2;
        trek_tensor *tensor = trek_comm_zeros(k % 5 ? r->comm : NULL, trek_shape_make(&count, 1), TREK_F32, trek_cpu(0));
        for (int64_t i = 0; i < count; i++)
            check(r, ((const float *)(const void *)tensor->data)[i] == 0, "zeros", k, i);
        trek_tensor *part = k % 2 ? part_of(tensor, half, count - half) : trek_tensor_retain(tensor);
        float *values = (float *)(void *)part->data;
        for (int time = 0; time < 3; time++) {
            for (int64_t i = 0; i < part->numel; i++)
                values[i] = (float)(i % 977 + r->rank + time);
            bool good = trek_comm_all_reduce(r->comm, part, TREK_REDUCTION_SUM) == TREK_OK;
            for (int64_t i = 0; i < part->numel; i++)
                good &= values[i] == (float)(r->world * (i % 977 + time) + r->world * (r->world - 1) / 2);
            check(r, good, "come and go", k, time);
        }
        trek_tensor_release(part);
        trek_tensor_release(tensor);
        unsigned char *fresh = calloc((size_t)count, 4);
        for (int64_t i = 0; i < 4 * count; i++)
            check(r, fresh[i] == 0, "calloc", k, i);
        free(fresh);
    }
    check(r, trek_comm_shared_direct(r->comm) > 20, "direct", (long long)trek_comm_shared_direct(r->comm), 0);
}

/* A child of fork() that gives it back, and the end of the group, leave the memory as it is. */
static void case_stays(rank_of *r)
{
    trek_tensor *tensor = in_window(r, make_values(TREK_F32, r->rank, 300000, 0));
    trek_tensor *expected = combined_values(TREK_F32, TREK_REDUCTION_MAX, r->world, 0, 300000);
    pid_t child = fork();
    if (child == 0) {
        trek_tensor_release(tensor);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    check(r, trek_comm_all_reduce(r->comm, tensor, TREK_REDUCTION_MAX) == TREK_OK && same_bytes(tensor, expected), "after a fork",
          0, 0);
    check(r, trek_comm_shared_direct(r->comm) == 1, "direct", 0, 0);
    trek_comm_barrier(r->comm); /* nobody's end is in another's call */
    trek_comm_free(&r->comm);
    trek_control_free(&r->control);
    check(r, same_bytes(tensor, expected), "after the end", 0, 0);
    trek_tensor_release(tensor);
    trek_tensor_release(expected);
}

/* The gradients of a setup lie where they are reduced. */
static void case_setup(rank_of *r)
{
    trek_graph *graph = trek_flow_build(trek_flow_from(trek_nn_linear(300, 300, trek_cpu(0))));
    trek_trainer_opts opts = { .comm = r->comm, .ranks = 1, .optimizer = trek_sgd(&(trek_sgd_opts){ .lr = 0.1 }) };
    uint64_t before = trek_comm_shared_direct(r->comm);
    check(r, trek_trainer_setup(graph, &opts) == TREK_OK, "setup", 0, 0);
    for (int k = 0; k < 3; k++) {
        trek_scope scope = trek_scope_begin();
        trek_var *x = trek_var_from(trek_tensor_randn(trek_dims(4, 300), TREK_F32, trek_cpu(0)));
        trek_graph_backward(graph, trek_mean(trek_square(trek_graph_forward(graph, x)), trek_dims_all(), false));
        check(r, trek_graph_step(graph) == TREK_OK, "step", k, 0);
        trek_scope_end(scope);
    }
    check(r, trek_comm_shared_direct(r->comm) - before >= 3, "direct", (long long)trek_comm_shared_direct(r->comm), 0);
    trek_graph_free(&graph);
}

static void case_stress(rank_of *r)
{
    int64_t big = 1000;
    for (int i = 0; i < 400; i++) {
        trek_tensor *one = trek_tensor_full(trek_dims(1), r->rank + i, TREK_F64, trek_cpu(0));
        trek_tensor *many = trek_tensor_full(trek_shape_make(&big, 1), r->rank * i, TREK_F32, trek_cpu(0));
        if ((i + r->rank) % 7 == 0)
            sleep_ms(1);
        check(r,
              trek_comm_all_reduce(r->comm, one, TREK_REDUCTION_SUM) == TREK_OK &&
                  trek_tensor_item(one) == r->world * (r->world - 1) / 2 + r->world * i,
              "one", i, 0);
        if (i % 3 == 0)
            check(r,
                  trek_comm_all_reduce(r->comm, many, TREK_REDUCTION_MAX) == TREK_OK &&
                      ((float *)(void *)many->data)[999] == (float)((r->world - 1) * i),
                  "many", i, 0);
        if (i % 5 == 0)
            check(r, trek_comm_barrier(r->comm) == TREK_OK, "barrier", i, 0);
        trek_tensor_release(one);
        trek_tensor_release(many);
    }
}

/* --- failures, seen by a rank: its own error is what it reports --- */

/* arg: what rank 1 does otherwise: 0 count, 1 dtype, 2 op, 3 kind, 4 an argument that is wrong */
static void case_mismatch(rank_of *r)
{
    bool odd = r->rank == 1;
    int64_t count = odd && r->arg == 0 ? 300000 : 200000;
    trek_tensor *tensor =
        trek_tensor_full(trek_shape_make(&count, 1), r->rank, odd && r->arg == 1 ? TREK_I32 : TREK_F32, trek_cpu(0));
    trek_tensor *before = trek_tensor_clone(tensor);
    if (odd && r->arg == 3)
        trek_comm_broadcast(r->comm, tensor, 0);
    else
        trek_comm_all_reduce(r->comm, tensor, odd && r->arg == 2 ? TREK_REDUCTION_MAX : odd &&
                             r->arg == 4 ? (trek_reduction)77 : TREK_REDUCTION_SUM);
    check(r, same_bytes(tensor, before), "data touched", 0, 0);
    trek_tensor_release(tensor);
    trek_tensor_release(before);
}

/* arg: 0 rank 1 comes when the others have given up; 1 it says that it saves, for longer than the deadline */
static void case_deadline(rank_of *r)
{
    trek_comm_set_deadline(r->comm, DEADLINE_S);
    trek_comm_barrier(r->comm);
    if (r->rank == 1 && r->arg) {
        trek_control_say_long(r->control, "save");
        sleep_ms(DEADLINE_S * 1500);
    }
    while (r->rank == 1 && !r->arg && !trek_comm_ended(r->comm))
        sleep_ms(10);
    trek_comm_barrier(r->comm);
}

static void case_abort(rank_of *r)
{
    trek_comm_barrier(r->comm);
    if (r->rank == 1) {
        sleep_ms(50);
        trek_comm_abort(r->comm, "enough");
    }
    trek_comm_barrier(r->comm);
}

/* Calls of all sizes until one fails. Then nobody writes to the memory any more, also not one who was stopped in the
 * middle and goes on later. */
static void case_work(rank_of *r)
{
    static const int64_t counts[] = { 3, 5000, 400000, 2000000 };
    trek_tensor *tensors[4];
    trek_comm_set_deadline(r->comm, DEADLINE_S);
    for (int k = 0; k < 4; k++) {
        tensors[k] = trek_comm_zeros(r->comm, trek_shape_make(&counts[k], 1), TREK_F32, trek_cpu(0));
        for (int64_t i = 0; i < counts[k]; i++)
            ((float *)(void *)tensors[k]->data)[i] = 1;
    }
    printf("begin\n");
    fflush(stdout);
    for (int i = 0; trek_error_status() == TREK_OK; i++) {
        if (r->arg && r->rank == 1 && i == r->arg) {
            if (r->arg % 2)
                exit(0);
            trek_comm_free(&r->comm);
            trek_control_free(&r->control);
            return;
        }
        trek_comm_all_reduce(r->comm, tensors[i % 11 == 0 ? 3 : i % 3], TREK_REDUCTION_MAX);
    }
    for (int k = 0; k < 4; k++)
        for (int64_t i = 0; i < counts[k]; i++)
            ((float *)(void *)tensors[k]->data)[i] = 7;
    printf("gave up\n");
    fflush(stdout);
    sleep_ms(r->arg ? 0 : 700);
    for (int k = 0; k < 4; k++)
        for (int64_t i = 0; i < counts[k]; i++)
            check(r, ((float *)(void *)tensors[k]->data)[i] == 7, "written to later", k, i);
    for (int k = 0; k < 4; k++)
        trek_tensor_release(tensors[k]);
}

static const struct {
    const char *name;
    void (*fn)(rank_of *r);
} cases[] = { { "reductions", case_reductions },
              { "moves", case_moves },
              { "same_bits", case_same_bits },
              { "stress", case_stress },
              { "come_and_go", case_come_and_go },
              { "stays", case_stays },
              { "setup", case_setup },
              { "mismatch", case_mismatch },
              { "deadline", case_deadline },
              { "abort", case_abort },
              { "work", case_work } };

/* argv: rank CASE world rank port arg. Last line of output: status of the thread, what was wrong, the error. */
static int rank_main(char **argv)
{
    rank_of r = { .world = atoi(argv[3]), .rank = atoi(argv[4]), .arg = atoi(argv[6]) };
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(200);
    if (getenv("TREK_TEST_LIMIT") && atoi(getenv("TREK_TEST_LIMIT")) == r.rank)
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 1 << 20, 1 << 20 });
    r.control = trek_control_join(&(trek_control_opts){
        .process = r.rank, .processes = r.world, .address = "127.0.0.1", .port = atoi(argv[5]), .token = "test", .join_s = 60 });
    if (r.control && trek_comm_shared_new(r.control, &r.comm) == TREK_OK)
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
            if (strcmp(cases[k].name, argv[2]) == 0)
                cases[k].fn(&r);
    printf("%d|%s|%s\n", (int)trek_error_status(), r.wrong, trek_error_status() ? trek_error() : "");
    fflush(stdout);
    trek_comm_free(&r.comm);
    trek_control_free(&r.control);
    return 0;
}

/* --- in the parent ----------------------------------------------------------------------- */

typedef struct job {
    int world;
    pid_t pid[MAX_WORLD];
    int out[MAX_WORLD], exit_status[MAX_WORLD];
    char text[MAX_WORLD][4096];
    int status[MAX_WORLD]; /* reported; -1: nothing */
    char *wrong[MAX_WORLD], *error[MAX_WORLD];
} job;

static void start(job *j, const char *name, int world, int arg)
{
    char texts[4][16];
    *j = (job){ .world = world };
    snprintf(texts[0], 16, "%d", world);
    snprintf(texts[2], 16, "%d", processes_free_port());
    snprintf(texts[3], 16, "%d", arg);
    for (int r = 0; r < world; r++) {
        int ends[2];
        snprintf(texts[1], 16, "%d", r);
        char *argv[] = { "test_shared", "rank", (char *)(uintptr_t)name, texts[0], texts[1], texts[2], texts[3], NULL };
        assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
        j->pid[r] = fork();
        if (j->pid[r] == 0) {
            dup2(ends[1], 1);
            execv("/proc/self/exe", argv);
            _exit(99);
        }
        close(ends[1]);
        j->out[r] = ends[0];
    }
}

/* Reads the next line of that rank, which is this one. */
static void wait_line(job *j, int rank, const char *line)
{
    size_t used = 0;
    j->text[rank][0] = '\0';
    while (!strchr(j->text[rank], '\n') && used < sizeof j->text[rank] - 1) {
        ssize_t got = read(j->out[rank], j->text[rank] + used, 1);
        if (got <= 0)
            break;
        j->text[rank][++used] = '\0';
    }
    assert_string_equal(j->text[rank], line);
    j->text[rank][0] = '\0';
}

static void finish(job *j)
{
    for (int r = 0; r < j->world; r++) {
        size_t used = 0;
        ssize_t got;
        while ((got = read(j->out[r], j->text[r] + used, sizeof j->text[r] - 1 - used)) > 0 || (got < 0 && errno == EINTR))
            used += got > 0 ? (size_t)got : 0;
        j->text[r][used] = '\0';
        close(j->out[r]);
        waitpid(j->pid[r], &j->exit_status[r], 0);
        char *line = j->text[r];
        while (strncmp(line, "begin\n", 6) == 0 || strncmp(line, "gave up\n", 8) == 0)
            line = strchr(line, '\n') + 1;
        j->status[r] = -1;
        j->wrong[r] = j->error[r] = "";
        char *first = strchr(line, '|'), *second = first ? strchr(first + 1, '|') : NULL;
        if (!second)
            continue;
        *first = *second = '\0';
        j->status[r] = atoi(line);
        j->wrong[r] = first + 1;
        j->error[r] = second + 1;
    }
}

static void check_rank(const job *j, int rank, int status, const char *part)
{
    bool good = j->exit_status[rank] == 0 && j->status[rank] == status && j->wrong[rank][0] == '\0' &&
                (!part || strstr(j->error[rank], part));
    if (!good)
        print_error("rank %d of %d: exit %x, status %d, wrong '%s', error '%s'; expected %d and '%s'\n", rank, j->world,
                    (unsigned)j->exit_status[rank], j->status[rank], j->wrong[rank], j->error[rank], status, part ? part : "");
    assert_true(good);
}

static void run_good(const char *name, int world, int arg)
{
    job j;
    start(&j, name, world, arg);
    finish(&j);
    for (int r = 0; r < world; r++)
        check_rank(&j, r, TREK_OK, NULL);
}

static void test_results(void **state)
{
    static const int worlds[] = { 2, 3, 5 };
    for (int k = 0; k < 3; k++) {
        run_good("reductions", worlds[k], 0);
        run_good("moves", worlds[k], 0);
        run_good("stress", worlds[k], 0);
    }
}

static void test_bits_of_threads(void **state)
{
    for (int world = 2; world <= 5; world += 1 + (world == 3))
        run_good("same_bits", world, OWN);
    run_good("same_bits", 3, ORDINARY);
    run_good("same_bits", 3, MIXED);
    setenv("TREK_TEST_LIMIT", "1", 1); /* process 1 may not make large files */
    run_good("same_bits", 3, REFUSED);
    unsetenv("TREK_TEST_LIMIT");
}

static void test_come_and_go(void **state)
{
    run_good("come_and_go", 2, 0);
    setenv("TREK_CACHE", "off", 1);
    run_good("come_and_go", 3, 0);
    unsetenv("TREK_CACHE");
}

static void test_stays(void **state)
{
    run_good("stays", 3, 0);
}

static void test_setup(void **state)
{
    run_good("setup", 2, 0);
    run_good("setup", 3, 0);
}

static void test_mismatch(void **state)
{
    static const char *const theirs[] = { "300000 elements", "i32", "max", "broadcast" };
    for (int kind = 0; kind < 5; kind++) {
        job j;
        start(&j, "mismatch", 3, kind);
        finish(&j);
        for (int r = 0; r < 3; r++) {
            if (kind == 4) {
                check_rank(&j, r, r == 1 ? TREK_ERR_ARGUMENT : TREK_ERR_COMM, r == 1 ? "gave 77" : "rank 1");
                continue;
            }
            check_rank(&j, r, TREK_ERR_COMM, "rank 0");
            check_rank(&j, r, TREK_ERR_COMM, "rank 1");
            check_rank(&j, r, TREK_ERR_COMM, "all_reduce(sum, f32, 200000 elements)");
            check_rank(&j, r, TREK_ERR_COMM, theirs[kind]);
        }
    }
}

static void test_deadline(void **state)
{
    job late, saving;
    start(&late, "deadline", 3, 0);
    start(&saving, "deadline", 3, 1);
    finish(&late);
    finish(&saving);
    for (int r = 0; r < 3; r++) {
        check_rank(&late, r, TREK_ERR_TIMEOUT, "rank 1");
        check_rank(&saving, r, TREK_OK, NULL);
    }
}

static void test_abort(void **state)
{
    job j;
    start(&j, "abort", 3, 0);
    finish(&j);
    for (int r = 0; r < 3; r++)
        check_rank(&j, r, TREK_ERR_CANCELLED, "enough");
}

/* Where memory cannot be shared all learn it. */
static void test_file_limit(void **state)
{
    job j;
    setenv("TREK_TEST_LIMIT", "0", 1); /* process 0 may not make large files */
    start(&j, "abort", 3, 0);
    finish(&j);
    unsetenv("TREK_TEST_LIMIT");
    for (int r = 0; r < 3; r++)
        check_rank(&j, r, TREK_ERR_MEMORY, "process 0");
}

/* A job of which a peer dies, or stops. */
typedef struct trial {
    job j;
    int victim;
    bool stops;
} trial;

static void begin_trial(trial *t, int k, unsigned *seed)
{
    int world = 2 + k % 3;
    t->victim = (int)(rand_r(seed) % (unsigned)world);
    t->stops = k % 5 == 3;
    int delay = 5 + (int)(rand_r(seed) % 150);
    start(&t->j, "work", world, 0);
    for (int r = 0; r < world; r++)
        wait_line(&t->j, r, "begin\n");
    sleep_ms(delay);
    kill(t->j.pid[t->victim], t->stops ? SIGSTOP : SIGKILL);
}

/* Who has stopped goes on when the others have given up. */
static void end_trial(trial *t)
{
    job *j = &t->j;
    char name[16];
    snprintf(name, sizeof name, t->stops ? "rank" : "rank %d", t->victim);
    for (int r = 0; r < j->world && t->stops; r++)
        if (r != t->victim)
            wait_line(j, r, "gave up\n");
    kill(j->pid[t->victim], SIGCONT);
    finish(j);
    for (int r = 0; r < j->world; r++) {
        if (r == t->victim && !t->stops)
            continue;
        bool named = strstr(j->error[r], name) || (!t->stops && strstr(j->error[r], "process"));
        if (j->wrong[r][0] || !named || (j->status[r] != TREK_ERR_PEER && j->status[r] != TREK_ERR_TIMEOUT))
            fail_msg("victim %d of %d: rank %d: %d '%s' '%s'", t->victim, j->world, r, j->status[r], j->wrong[r], j->error[r]);
    }
}

/* At any time. Five wait together for what nobody does any more. */
static void test_killed_and_stopped(void **state)
{
    enum { AT_ONCE = 5 };
    static trial trials[AT_ONCE];
    unsigned seed = 12345;
    for (int first = 0; first < 10; first += AT_ONCE) {
        for (int k = 0; k < AT_ONCE; k++)
            begin_trial(&trials[k], first + k, &seed);
        for (int k = 0; k < AT_ONCE; k++)
            end_trial(&trials[k]);
    }
}

/* A peer ends without a word (odd), or leaves in order (even), while the others go on. */
static void test_leaving(void **state)
{
    for (int at = 1; at <= 8; at++) {
        job j;
        start(&j, "work", 3, at);
        finish(&j);
        check_rank(&j, 0, TREK_ERR_PEER, "1");
        check_rank(&j, 2, TREK_ERR_PEER, "1");
    }
}

/* Last: none of the above has left anything. */
static void test_nothing_is_left(void **state)
{
    const char *left = left_in_shm();
    if (left)
        fail_msg("/dev/shm/%s was left behind", left);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

int main(int argc, char **argv)
{
    if (argc == 7 && strcmp(argv[1], "rank") == 0)
        return rank_main(argv);
    left_own_shm();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results), cmocka_unit_test(test_bits_of_threads), cmocka_unit_test(test_come_and_go),
        cmocka_unit_test(test_stays), cmocka_unit_test(test_setup), cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_deadline), cmocka_unit_test(test_abort), cmocka_unit_test(test_file_limit),
        cmocka_unit_test(test_killed_and_stopped), cmocka_unit_test(test_leaving), cmocka_unit_test(test_nothing_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
