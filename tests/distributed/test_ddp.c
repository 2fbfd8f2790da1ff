/* SPDX-License-Identifier: Apache-2.0 */
/* trek_ddp against one device: gradients and steps for every way to call it, on 1, 2,
 * 3 and 5 ranks, which are threads or processes. */
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "autograd/backward.h"
#include "autograd/leaf.h"
#include "autograd/ops.h"
#include "distributed/comm/gloo/gloo.h"
#include "distributed/ddp.h"
#include "nn/module_tree.h"
#include "optim/optimizer.h"
#include "tests/support/ddp_net.h"
#include "tests/support/processes.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

enum { STEPS = 5, MAX_WORLD = 5, MAX_VALUES = 512 };

/* --- what is run --------------------------------------------- */

typedef enum how { REDUCE, BACKWARD } how;
typedef enum optimizer_when { BEFORE, AFTER, OWN } optimizer_when;

typedef struct job {
    int world, passes;
    bool weighted;            /* ranks have 2, 3, .. rows, the last one (of several) none */
    how how;
    optimizer_when when;      /* OWN: the program takes steps itself, so gradients lie anywhere */
    trek_ddp_opts opts;
    trek_dtype dtype;
    trek_optimizer_spec spec;
    trek_module *models[MAX_WORLD];
    trek_ddp *ddp;            /* of all ranks; NULL: each has its own */
    trek_comm *comms[MAX_WORLD];
    bool gives_back;          /* its handle, as soon as the model is wrapped */
    int n_values[MAX_WORLD];
    double values[MAX_WORLD][MAX_VALUES]; /* parameters in the end */
    trek_status status[MAX_WORLD];
    char message[MAX_WORLD][256];
} job;

static int64_t rows_of(const job *j, int rank)
{
    if (!j->weighted)
        return 3;
    return rank > 0 && rank == j->world - 1 ? 0 : 2 + rank;
}

static int64_t first_of(const job *j, int rank)
{
    int64_t first = 0;
    for (int r = 0; r < rank; r++)
        first += rows_of(j, r);
    return first;
}

static trek_status see_value(const char *name, trek_var *param, void *arg)
{
    job *j = ((void **)arg)[0];
    int rank = *(int *)((void **)arg)[1];
    double *values = test_read(trek_var_data(param));
    for (int64_t i = 0; i < trek_var_numel(param); i++)
        j->values[rank][j->n_values[rank]++] = values[i];
    free(values);
    return TREK_OK;
}

static void read_values(job *j, int rank, trek_module *model)
{
    j->n_values[rank] = 0;
    trek_module_each_param(model, see_value, (void *[]){ j, &rank });
}

static trek_status own_step(const char *name, trek_var *param, void *arg)
{
    trek_var *grad = trek_var_grad(param);
    if (grad) {
        trek_no_grad_begin();
        trek_scope scope = trek_scope_begin();
        trek_copy_(param, trek_sub(param, trek_mul_scalar(grad, 0.05)));
        trek_scope_end(scope);
        trek_no_grad_end();
        trek_var_zero_grad(param);
    }
    return TREK_OK;
}

static trek_optimizer *optimizer_of(const job *j, trek_module *model)
{
    trek_params *params = trek_module_params(model);
    trek_optimizer *optimizer = trek_optimizer_new(j->spec, params);
    trek_params_free(&params);
    return optimizer;
}

static void take_step(trek_module *model, trek_optimizer *optimizer)
{
    if (optimizer) {
        trek_optimizer_step(optimizer);
        trek_optimizer_zero_grad(optimizer);
    } else {
        trek_module_each_param(model, own_step, NULL);
    }
}

/* A rank without rows has a pass all the same, whose gradients are NaN: they must not get anywhere. */
static trek_var *poisoned(trek_module *model, trek_dtype dtype)
{
    return trek_mul_scalar(ddp_loss_of(model, 77, 0, 2, dtype), NAN);
}

static void run_step(const job *j, int rank, trek_ddp *ddp, trek_module *model, int step)
{
    int64_t n = rows_of(j, rank), first = first_of(j, rank);
    double counts[MAX_WORLD];
    for (int r = 0; r < j->world; r++)
        counts[r] = (double)rows_of(j, j->ddp ? r : rank);
    for (int p = 0; p < j->passes; p++) {
        trek_scope scope = trek_scope_begin();
        trek_var *loss = n > 0 ? ddp_loss_of(model, (uint32_t)(step * 10 + p), first, n, j->dtype) : poisoned(model, j->dtype);
        if (j->how == REDUCE || p + 1 < j->passes)
            trek_backward(loss);
        else if (j->weighted)
            trek_ddp_backward_weighted(ddp, n > 0 ? loss : NULL, (double)n);
        else
            trek_ddp_backward(ddp, loss);
        trek_scope_end(scope);
    }
    if (j->how == REDUCE && j->weighted)
        trek_ddp_reduce_gradients_weighted(ddp, counts);
    else if (j->how == REDUCE)
        trek_ddp_reduce_gradients(ddp);
}

static void note(job *j, int rank)
{
    j->status[rank] = trek_error_status();
    snprintf(j->message[rank], sizeof j->message[rank], "%.255s", trek_error_status() != TREK_OK ? trek_error() : "");
    trek_error_clear();
}

static trek_status rank_main(int rank, void *arg)
{
    job *j = arg;
    trek_module *model = j->models[rank];
    trek_optimizer *optimizer = j->when == BEFORE ? optimizer_of(j, model) : NULL;
    trek_ddp *own = j->ddp ? NULL : trek_ddp_wrap_process(model, j->comms[rank], &j->opts), *ddp = j->ddp ? j->ddp : own;
    if (ddp && j->when == AFTER)
        optimizer = optimizer_of(j, own ? trek_ddp_module(own) : model);
    if (j->gives_back)
        trek_comm_free(&j->comms[rank]);
    for (int s = 0; ddp && s < STEPS; s++) {
        run_step(j, rank, ddp, model, s);
        take_step(model, optimizer);
    }
    if (ddp)
        read_values(j, rank, model);
    trek_optimizer_free(&optimizer);
    trek_ddp_free(&own);
    note(j, rank);
    return TREK_OK;
}

/* One device over all ranks' rows. */
static void run_one_device(const job *j, job *one)
{
    int64_t total = first_of(j, j->world);
    *one = *j;
    trek_module *model = ddp_net_new(j->dtype, 0);
    trek_optimizer *optimizer = j->when == OWN ? NULL : optimizer_of(j, model);
    for (int s = 0; s < STEPS; s++) {
        for (int p = 0; p < j->passes; p++) {
            trek_scope scope = trek_scope_begin();
            trek_backward(ddp_loss_of(model, (uint32_t)(s * 10 + p), 0, total, j->dtype));
            trek_scope_end(scope);
        }
        take_step(model, optimizer);
    }
    read_values(one, 0, model);
    trek_optimizer_free(&optimizer);
    trek_module_free(&model);
}

static bool is_close(const job *j, int rank, const job *one)
{
    double tolerance = j->dtype == TREK_F64 ? 1e-11 : 3e-5;
    bool close = j->n_values[rank] == one->n_values[0];
    for (int i = 0; i < one->n_values[0] && close; i++)
        close = fabs(j->values[rank][i] - one->values[0][i]) <= tolerance * (1 + fabs(one->values[0][i]));
    return close;
}

static void check_against_one_device(const job *j)
{
    static job one;
    run_one_device(j, &one);
    assert_int_equal(trek_error_status(), TREK_OK);
    for (int r = 0; r < j->world; r++) {
        if (j->status[r] != TREK_OK)
            print_error("rank %d of %d: %s\n", r, j->world, j->message[r]);
        assert_int_equal(j->status[r], TREK_OK);
        assert_true(is_close(j, r, &one));
        assert_memory_equal(j->values[r], j->values[0], sizeof j->values[0]); /* ranks: the same bits */
    }
}

typedef struct thread_arg {
    job *j;
    int rank;
} thread_arg;

static void *thread_main(void *arg)
{
    thread_arg *a = arg;
    rank_main(a->rank, a->j);
    return NULL;
}

/* Replicas but rank 0's begin elsewhere: they must take its values. */
static void make_models(job *j)
{
    for (int r = 0; r < j->world; r++)
        j->models[r] = ddp_net_new(j->dtype, r == 0 ? 0 : 100 * (uint32_t)r);
}

/* Threads of the program's own, each with its handle. */
static void run_on_threads(job *j)
{
    pthread_t threads[MAX_WORLD];
    thread_arg args[MAX_WORLD];
    assert_int_equal(trek_comm_local(test_devices(), j->world, j->comms), TREK_OK);
    for (int r = 0; r < j->world; r++) {
        trek_comm_set_deadline(j->comms[r], 60);
        args[r] = (thread_arg){ j, r };
        assert_int_equal(pthread_create(&threads[r], NULL, thread_main, &args[r]), 0);
    }
    for (int r = 0; r < j->world; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < j->world; r++)
        trek_comm_free(&j->comms[r]);
}

static void run_in_group(job *j)
{
    trek_ranks *ranks = trek_ranks_new(test_devices(), j->world);
    assert_non_null(ranks);
    for (int r = 0; r < j->world; r++)
        j->comms[r] = trek_ranks_comm(ranks, r);
    assert_int_equal(trek_ranks_run(ranks, rank_main, j), TREK_OK);
    trek_ranks_free(&ranks);
}

static void run_wrapped(job *j)
{
    j->ddp = trek_ddp_wrap(j->models, j->world, &j->opts);
    if (!j->ddp)
        print_error("%s\n", trek_error());
    assert_non_null(j->ddp);
    assert_int_equal(trek_ddp_world_size(j->ddp), j->world);
    if (trek_ddp_ranks(j->ddp))
        assert_int_equal(trek_ranks_run(trek_ddp_ranks(j->ddp), rank_main, j), TREK_OK);
    else
        rank_main(0, j);
    trek_ddp_free(&j->ddp);
    assert_null(j->ddp);
}

typedef enum way { THREADS, GROUP, WRAPPED } way;

static void run_job(job *j, way way)
{
    make_models(j);
    test_settle(TREK_OK); /* on this thread */
    if (way == THREADS)
        run_on_threads(j);
    else if (way == GROUP)
        run_in_group(j);
    else
        run_wrapped(j);
    check_against_one_device(j);
}

static const int worlds[] = { 1, 2, 3, 5 };

/* --- exact in every way --------------------------------------------- */

static void steps_are_those_of_one_device(void **state)
{
    int n = 0;
    static job j;
    for (int w = 0; w < 4; w++)
        for (int way = THREADS; way <= WRAPPED; way++)
            for (int weighted = 0; weighted < 2; weighted++)
                for (int when = BEFORE; when <= OWN; when++, n++) {
                    if (way == WRAPPED && when == BEFORE)
                        continue; /* rank_main makes optimizers */
                    memset(&j, 0, sizeof j);
                    j.world = worlds[w];
                    j.passes = 1 + n % 3;
                    j.weighted = weighted;
                    j.how = n % 2 ? BACKWARD : REDUCE;
                    j.when = (optimizer_when)when;
                    j.opts.bucket_bytes = n % 5 < 2 ? 100 : 0; /* several buckets; one */
                    j.opts.overlap = n % 4 > 1;
                    j.dtype = n % 7 == 3 ? TREK_F32 : TREK_F64;
                    j.spec = n % 3 ? trek_sgd(&(trek_sgd_opts){ .lr = 0.05, .momentum = 0.9, .weight_decay = 0.1 })
                                   : trek_adamw(&(trek_adam_opts){ .lr = 0.01, .weight_decay = 0.1 });
                    run_job(&j, (enum way)way);
                }
}

/* All of them through buckets that go under backward, of all sizes. */
static void overlap_changes_nothing(void **state)
{
    static job j;
    for (int w = 1; w < 4; w++)
        for (int when = BEFORE; when <= OWN; when++)
            for (int bytes = 0; bytes < 3; bytes++) {
                memset(&j, 0, sizeof j);
                j = (job){ .world = worlds[w], .passes = 2, .weighted = bytes % 2, .how = BACKWARD, .when = (optimizer_when)when,
                           .opts = { .bucket_bytes = bytes == 0 ? 1 : bytes == 1 ? 300 : 0, .overlap = 1 }, .dtype = TREK_F64,
                           .spec = trek_sgd(&(trek_sgd_opts){ .lr = 0.05, .momentum = 0.9 }) };
                run_job(&j, THREADS);
            }
}

/* What was made with a communicator keeps it. */
static void handles_that_were_given_back(void **state)
{
    static job j;
    for (int w = 0; w < 4; w++) {
        memset(&j, 0, sizeof j);
        j = (job){ .world = worlds[w], .passes = 1, .how = BACKWARD, .when = AFTER, .gives_back = true, .dtype = TREK_F64,
                   .spec = trek_sgd(&(trek_sgd_opts){ .lr = 0.05, .momentum = 0.9 }) };
        run_job(&j, THREADS);
    }
}

/* --- processes --------------------------------------------- */

/* This process's rank of a job that its detail describes: "engine,weighted,backward,optimizer,overlap". */
static int play(const part *p)
{
    static job j, one;
    char engine[32];
    int weighted, backward, when, overlap;
    if (sscanf(p->detail, "%31[a-z],%d,%d,%d,%d", engine, &weighted, &backward, &when, &overlap) != 5)
        return 3;
    j = (job){ .world = p->processes,
               .passes = 2,
               .weighted = weighted,
               .how = backward ? BACKWARD : REDUCE,
               .when = (optimizer_when)when,
               .opts = { .bucket_bytes = 200, .overlap = overlap },
               .dtype = TREK_F64,
               .spec = trek_adamw(&(trek_adam_opts){ .lr = 0.01, .weight_decay = 0.1 }) };
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .engine = engine,
                                                        .rank = p->process,
                                                        .world_size = p->processes,
                                                        .address = p->address,
                                                        .port = p->port,
                                                        .token = "ddp",
                                                        .deadline_s = 20 });
    if (comm) {
        j.models[p->process] = ddp_net_new(j.dtype, 100 * (uint32_t)p->process);
        j.comms[p->process] = comm;
        rank_main(p->process, &j);
        run_one_device(&j, &one);
        trek_comm_free(&comm);
    } else {
        note(&j, p->process);
    }
    bool good = j.status[p->process] == TREK_OK && is_close(&j, p->process, &one);
    printf("%s %s\n", good ? "as one device" : "differs", j.message[p->process]);
    return !good;
}

static void processes_are_ranks(void **state)
{
    static world w;
    static const char *const details[] = { "shared,1,0,0,0", "shared,0,1,2,1", "shared,1,1,1,1", "gloo,1,1,1,0", "gloo,0,0,2,0" };
    char why[256];
    int engines = trek_comm_gloo_there(why, sizeof why) ? 5 : 3;
    if (engines == 3)
        print_message("shared memory only: %s\n", why);
    for (int k = 0; k < engines; k++)
        for (int n = 2; n <= 3; n++) {
            processes_run_all(&w, n, "rank", details[k], -1, NULL);
            for (int p = 0; p < n; p++) {
                WANT(&w, w.code[p] == 0);
                assert_non_null(strstr(w.text[p], "as one device"));
            }
        }
}

/* MPI progresses by itself: buckets go under backward without being asked for. Where it is built. */
static void processes_of_mpirun(void **state)
{
    char plugin[512], self[512], command[2048], line[512];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    snprintf(plugin, sizeof plugin, "%s", processes_built("distributed/comm/mpi/libtrek-mpi.so"));
    if (length < 0 || access(plugin, R_OK) != 0 || system("mpirun --version > /dev/null 2>&1") != 0)
        skip();
    self[length] = 0;
    *strrchr(plugin, '/') = 0;
    static const char *const details[] = { "mpi,1,1,0,0", "mpi,0,1,1,0", "mpi,1,1,2,0" };
    for (int k = 0; k < 3; k++) {
        snprintf(command, sizeof command,
                 "TREK_TEST_ROLE=mpi TREK_TEST_PART='0 0 %d 127.0.0.1 %s' TREK_PLUGIN_PATH='%s' timeout -k 5 60 mpirun "
                 "--oversubscribe "
                 "--allow-run-as-root -n 2 '%s' 2>&1",
                 processes_free_port(), details[k], plugin, self);
        FILE *output = popen(command, "r");
        assert_non_null(output);
        int good = 0;
        while (fgets(line, sizeof line, output)) {
            good += strncmp(line, "as one device", 13) == 0;
            if (strncmp(line, "as one device", 13) != 0)
                print_message("%s", line);
        }
        assert_int_equal(pclose(output), 0);
        assert_int_equal(good, 2);
    }
}

/* The last process is gone in the middle: the others are told who, and their parameters are as after the step before. */
static int play_on_without(const part *p)
{
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .rank = p->process, .world_size = p->processes, .address = p->address,
                                                        .port = p->port, .token = "ddp", .deadline_s = 20 });
    trek_ddp *ddp = comm ? trek_ddp_wrap_process(ddp_net_new(TREK_F64, 0), comm, NULL) : NULL;
    trek_status status = trek_error_status();
    double before = 0, after = 1;
    int steps = 0;
    for (; steps < 100 && status == TREK_OK; steps++) {
        trek_module *model = trek_ddp_module(ddp);
        trek_scope scope = trek_scope_begin();
        before = trek_var_item(trek_sum(trek_module_find(model, "w1"), trek_dims_all(), false));
        trek_backward(ddp_loss_of(model, (uint32_t)steps, 0, 3, TREK_F64));
        if (steps == 5 && p->process == p->processes - 1)
            raise(SIGKILL);
        trek_optimizer *none = NULL;
        status = trek_ddp_reduce_gradients(ddp);
        char message[512];
        snprintf(message, sizeof message, "%.500s", status != TREK_OK ? trek_error() : "");
        trek_error_clear();
        if (status == TREK_OK)
            take_step(model, none);
        else
            printf("step %d: %s\n", steps, message);
        after = trek_var_item(trek_sum(trek_module_find(model, "w1"), trek_dims_all(), false));
        trek_scope_end(scope);
    }
    printf("%s after %d\n", before == after ? "unchanged" : "changed", steps - 1);
    trek_ddp_free(&ddp);
    trek_comm_free(&comm);
    return 0;
}

static void process_that_dies(void **state)
{
    static world w;
    processes_run_all(&w, 3, "dies", "-", -1, NULL);
    assert_int_equal(w.code[2], -SIGKILL);
    for (int p = 0; p < 2; p++) {
        if (w.code[p] != 0 || !strstr(w.text[p], "unchanged after 5"))
            processes_print(&w);
        assert_int_equal(w.code[p], 0);
        assert_non_null(strstr(w.text[p], "unchanged after 5"));
        assert_non_null(strstr(w.text[p], "process 2 died"));
    }
}

int main(void)
{
    part p = { .role = NULL };
    if (processes_part(&p) && strcmp(p.role, "mpi") == 0) {
        p.process = atoi(getenv("OMPI_COMM_WORLD_RANK"));
        p.processes = atoi(getenv("OMPI_COMM_WORLD_SIZE"));
    }
    if (p.role)
        return strcmp(p.role, "dies") == 0 ? play_on_without(&p) : play(&p);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_those_of_one_device), cmocka_unit_test(overlap_changes_nothing),
        cmocka_unit_test(handles_that_were_given_back), cmocka_unit_test(processes_are_ranks),
        cmocka_unit_test(processes_of_mpirun), cmocka_unit_test(process_that_dies),
    };
    alarm(300);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
