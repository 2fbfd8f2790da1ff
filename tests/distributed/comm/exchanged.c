/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/distributed/comm/exchanged.h"

#include <signal.h>
#include <unistd.h>

#include "distributed/comm/comm_internal.h"
#include "tensor/tensor_internal.h"
#include "tests/support/support.h"
#include "tests/support/unit.h"

trek_comm *exchanged_join(const part *me, const char *engine, double deadline)
{
    trek_comm *comm = trek_comm_init(&(trek_comm_opts){ .engine = engine, .rank = me->process, .world_size = me->processes,
                                                        .address = me->address, .port = me->port, .token = "of this test alone",
                                                        .deadline_s = deadline });
    if (!comm)
        printf("join %s: %s\n", trek_status_name(trek_error_status()), trek_error());
    return comm;
}

/* Value of element i of process r: an exact number in every dtype. */
static double small_number(int r, int64_t i) { return (double)((i * 7 + r * 3) % 5); }

trek_tensor *exchanged_numbers(int r, int64_t count, trek_dtype dtype)
{
    double *values = malloc((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = dtype == TREK_BOOL ? (int)small_number(r, i) & 1 : small_number(r, i);
    trek_tensor *tensor = test_values(values, trek_dims(count), dtype);
    free(values);
    return tensor;
}

static double combined(int world, int64_t i, trek_reduction op, trek_dtype dtype)
{
    double result = dtype == TREK_BOOL ? (int)small_number(0, i) & 1 : small_number(0, i);
    for (int r = 1; r < world; r++) {
        double x = dtype == TREK_BOOL ? (int)small_number(r, i) & 1 : small_number(r, i);
        result = op == TREK_REDUCTION_PROD  ? result * x
                 : op == TREK_REDUCTION_MAX ? (x > result ? x : result)
                 : op == TREK_REDUCTION_MIN ? (x < result ? x : result)
                                  : result + x;
    }
    return op == TREK_REDUCTION_MEAN ? result / world : result;
}

bool exchanged_same(const trek_tensor *tensor, int64_t from, int64_t count, int world, trek_reduction op, const char *what)
{
    double *values = test_read(tensor);
    bool good = values != NULL;
    for (int64_t i = 0; good && i < count; i++) {
        double want = combined(world, from + i, op, tensor->dtype);
        if (tensor->dtype == TREK_F32)
            want = (float)want;
        if (values[i] != want) {
            printf("%s %s: element %lld is %g, not %g\n", what, trek_dtype_name(tensor->dtype), (long long)i, values[i], want);
            good = false;
        }
    }
    free(values);
    return good;
}

/* The root has the result, and the others have what they gave. */
static bool reduced_to(trek_comm *comm, int root, int64_t count, trek_dtype dtype, trek_reduction op)
{
    int rank = trek_comm_rank(comm);
    trek_tensor *tensor = exchanged_numbers(rank, count, dtype), *given = trek_tensor_clone(tensor);
    bool good = trek_comm_run(comm, (trek_comm_call){ .kind = TREK_COMM_REDUCE, .op = op, .root = root, .dtype = dtype,
                                                      .count = count, .in = tensor->data, .out = tensor->data }) == TREK_OK;
    good = good && (rank == root ? exchanged_same(tensor, 0, count, trek_comm_world_size(comm), op, "reduce")
                                 : test_same_bits(tensor, given));
    trek_tensor_release(tensor);
    trek_tensor_release(given);
    return good;
}

bool exchanged_reduces(trek_comm *comm, int64_t count)
{
    static const struct { trek_dtype dtype; trek_reduction op; } rows[] = {
        { TREK_F32, TREK_REDUCTION_SUM }, { TREK_F32, TREK_REDUCTION_MEAN }, { TREK_F64, TREK_REDUCTION_PROD },
            { TREK_BF16, TREK_REDUCTION_SUM }, { TREK_I64, TREK_REDUCTION_MAX },
        { TREK_I32, TREK_REDUCTION_MIN }, { TREK_BOOL, TREK_REDUCTION_MAX },
    };
    int world = trek_comm_world_size(comm), rank = trek_comm_rank(comm);
    bool good = true;
    for (size_t k = 0; good && k < sizeof rows / sizeof *rows; k++) {
        trek_tensor *all = exchanged_numbers(rank, count * world, rows[k].dtype),
            *part = exchanged_numbers(rank, count, rows[k].dtype);
        good = trek_comm_reduce_scatter(comm, all, part, rows[k].op) == TREK_OK &&
               exchanged_same(part, rank * count, count, world, rows[k].op, "reduce_scatter") &&
               trek_comm_all_reduce(comm, all, rows[k].op) == TREK_OK &&
               exchanged_same(all, 0, count * world, world, rows[k].op, "all_reduce") &&
               reduced_to(comm, (int)((count + (int64_t)k) % world), count, rows[k].dtype, rows[k].op);
        trek_tensor_release(all);
        trek_tensor_release(part);
    }
    return good;
}

bool exchanged_moves(trek_comm *comm, int64_t count)
{
    int world = trek_comm_world_size(comm), rank = trek_comm_rank(comm);
    bool good = true;
    trek_tensor *part = exchanged_numbers(rank, count, TREK_F32), *all = exchanged_numbers(99, count * world, TREK_F32);
    good = trek_comm_all_gather(comm, part, all) == TREK_OK;
    double *values = test_read(all);
    for (int64_t i = 0; good && i < count * world; i++)
        good = values[i] == small_number((int)(i / count), i % count);
    free(values);
    for (int root = 0; good && root < world; root += root < 5 ? 1 : world / 4) { /* of many some */
        trek_tensor *mine = exchanged_numbers(rank, count, TREK_F32), *theirs = exchanged_numbers(root, count, TREK_F32);
        good = trek_comm_broadcast(comm, mine, root) == TREK_OK && test_same_bits(mine, theirs);
        trek_tensor_release(mine);
        trek_tensor_release(theirs);
    }
    trek_tensor_release(part);
    trek_tensor_release(all);
    return good && trek_comm_barrier(comm) == TREK_OK;
}

/* The same bits on all ranks. */
static bool same_everywhere(trek_comm *comm, trek_tensor *tensor)
{
    trek_tensor *first = trek_tensor_clone(tensor);
    bool good = trek_comm_broadcast(comm, first, 0) == TREK_OK && test_same_bits(first, tensor);
    trek_tensor_release(first);
    return good;
}

/* f32 sums are those of the rank order, to the bit; over Gloo and MPI this holds for small ones, and large ones are the same
 * everywhere, within roundings of it. */
bool exchanged_in_order(trek_comm *comm, uint32_t count)
{
    int world = trek_comm_world_size(comm);
    bool ordered = strcmp(processes_engine(), "shared") == 0 || (count <= 1024 && (size_t)world * count <= 65536);
    trek_tensor *tensor = test_tensor((uint32_t)trek_comm_rank(comm) + 1, trek_dims(count), 1);
    bool good = trek_comm_all_reduce(comm, tensor, TREK_REDUCTION_SUM) == TREK_OK;
    double *values = test_read(tensor);
    for (uint32_t i = 0; good && i < count; i++) {
        float sum = test_number(1, i);
        for (int r = 1; r < world; r++)
            sum += test_number((uint32_t)r + 1, i);
        good = ordered ? (float)values[i] == sum : fabs(values[i] - (double)sum) <= 1e-6 * world;
    }
    good = good && same_everywhere(comm, tensor);
    free(values);
    trek_tensor_release(tensor);
    return good;
}

/* A reduction of 64 MiB in which one process dies, or its link. */
int exchanged_play_large(const part *me)
{
    trek_comm *comm = exchanged_join(me, processes_engine(), 60);
    trek_tensor *tensor = trek_comm_zeros(comm, trek_dims(16 << 20), TREK_F32, trek_cpu(0));
    trek_status status = comm && tensor ? TREK_OK : trek_error_status();
    for (int i = 0; status == TREK_OK && i < 1000; i++) {
        if (i == 1 && strcmp(me->detail, "kill") == 0 && fork() == 0) { /* from outside, in mid-call */
            processes_pause(30);
            kill(getppid(), SIGKILL);
            _exit(0);
        }
        status = trek_comm_all_reduce(comm, tensor, TREK_REDUCTION_SUM);
        if (i == 0)
            printf("begun\n");
    }
    printf("%s: %s\n", trek_status_name(status), trek_error());
    trek_tensor_release(tensor);
    trek_comm_free(&comm);
    return status == TREK_OK ? 0 : 1;
}
