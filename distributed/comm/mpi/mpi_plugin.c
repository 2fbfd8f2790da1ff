/* SPDX-License-Identifier: Apache-2.0 */
/* The plug-in libtrek-mpi, which expresses trek's calls by the installed MPI. Errors come back as statuses. Nothing
 * here ends the program, waits for another process (except MPI_Init_thread and MPI_Finalize), or touches the
 * program's own use of MPI. */
#include "distributed/comm/async/async_table.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(MPI_Request) <= sizeof(trek_async_request), "a request must fit");

/* The only messages with tags are those by which ranks meet. */
enum { MEETING_TAG = 1, GROUP_TAG = 2 };

struct trek_async_group {
    MPI_Comm comm;
    int rank, world;
};

static const trek_async_host *host;
static trek_async_table *shown;     /* the core's table */
static bool ours;                 /* trek has initialised MPI */
static bool ending;               /* and is finalising it */
static int leave_key = MPI_KEYVAL_INVALID;
static MPI_Op own_ops[TREK_REDUCTION_PROD + 1];
static bool own_ops_made;

/* --- small things ------------------------------------------------------------------ */

static trek_status fail_call(const char *call, int code)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "", message[MPI_MAX_ERROR_STRING + 64];
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        snprintf(text, sizeof text, "error %d", code);
    snprintf(message, sizeof message, "%s: %s", call, text);
    return host->fail(TREK_ERR_COMM, message);
}

static trek_status started(const char *call, int code, MPI_Request request, trek_async_request *result)
{
    if (code != MPI_SUCCESS)
        request = MPI_REQUEST_NULL;
    memcpy(&result->word, &request, sizeof request);
    return code == MPI_SUCCESS ? TREK_OK : fail_call(call, code);
}

static MPI_Datatype type_of(trek_dtype dtype)
{
    switch (dtype) {
    case TREK_F32:
        return MPI_FLOAT;
    case TREK_F64:
        return MPI_DOUBLE;
    case TREK_I64:
        return MPI_INT64_T;
    case TREK_I32:
        return MPI_INT32_T;
    default:
        return MPI_UINT8_T;
    }
}

/* Returns an operation of trek's where MPI's own would differ: its maximum does not define the result for NaN, and
 * Open MPI's sums of bytes saturate on processors with such an instruction. */
static MPI_Op op_of(trek_dtype dtype, trek_reduction op)
{
    bool floats = dtype == TREK_F32 || dtype == TREK_F64, wide = floats || dtype == TREK_I64 || dtype == TREK_I32;
    bool extreme = op == TREK_REDUCTION_MAX || op == TREK_REDUCTION_MIN;
    if (!wide || (floats && extreme))
        return own_ops[op];
    return op == TREK_REDUCTION_PROD ? MPI_PROD : op == TREK_REDUCTION_MAX ? MPI_MAX : op == TREK_REDUCTION_MIN ? MPI_MIN
        : MPI_SUM;
}

static void fold(void *in, void *inout, int *count, MPI_Datatype *type, trek_reduction op)
{
    trek_dtype dtype = *type == MPI_DOUBLE ? TREK_F64 : *type == MPI_FLOAT ? TREK_F32 : TREK_U8;
    host->fold(dtype, op, in, inout, *count);
}
static void fold_sum(void *in, void *inout, int *count, MPI_Datatype *type) { fold(in, inout, count, type, TREK_REDUCTION_SUM); }
static void fold_max(void *in, void *inout, int *count, MPI_Datatype *type) { fold(in, inout, count, type, TREK_REDUCTION_MAX); }
static void fold_min(void *in, void *inout, int *count, MPI_Datatype *type) { fold(in, inout, count, type, TREK_REDUCTION_MIN); }
static void fold_prod(void *in, void *inout, int *count, MPI_Datatype *type)
{
    fold(in, inout, count, type, TREK_REDUCTION_PROD);
}

/* --- beginning and end ---------------------------------------------------------------- */

/* MPI_Finalize begins by deleting the attributes of MPI_COMM_SELF. */
static int on_leaving(MPI_Comm comm, int key, void *value, void *extra)
{
    (void)comm, (void)key, (void)value, (void)extra;
    if (!ending)
        host->leaving(host);
    return MPI_SUCCESS;
}

static trek_status check_level(void)
{
    static const char *const names[] = { "MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED" };
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    if (level == MPI_THREAD_SERIALIZED || level == MPI_THREAD_MULTIPLE)
        return TREK_OK;
    char message[320];
    snprintf(message, sizeof message,
             "the program has initialised MPI with %s, but trek's communication has a thread of its own: ask MPI_Init_thread for "
             "MPI_THREAD_MULTIPLE or MPI_THREAD_SERIALIZED, or leave initialising MPI to trek",
             names[level == MPI_THREAD_FUNNELED]);
    return host->fail(TREK_ERR_UNSUPPORTED, message);
}

static trek_status initialise(void)
{
    int given = 0, finalised = 0, initialised = 0;
    MPI_Finalized(&finalised);
    if (finalised)
        return host->fail(TREK_ERR_UNSUPPORTED, "the program has finalised MPI already; it cannot be initialised again");
    MPI_Initialized(&initialised);
    if (initialised)
        return ours ? TREK_OK : check_level();
    int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &given);
    if (code != MPI_SUCCESS)
        return fail_call("MPI_Init_thread", code);
    ours = true;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); /* the default handler would end the program */
    return TREK_OK;
}

static trek_status make_own(void)
{
    MPI_User_function *const folds[] = { [TREK_REDUCTION_SUM] = fold_sum, [TREK_REDUCTION_MEAN] = fold_sum,
                                         [TREK_REDUCTION_MAX] = fold_max,
                                         [TREK_REDUCTION_MIN] = fold_min,
                                         [TREK_REDUCTION_PROD] = fold_prod };
    int code = MPI_SUCCESS;
    for (int op = 0; op <= TREK_REDUCTION_PROD && code == MPI_SUCCESS && !own_ops_made; op++)
        code = MPI_Op_create(folds[op], 1, &own_ops[op]);
    own_ops_made = own_ops_made || code == MPI_SUCCESS;
    if (code == MPI_SUCCESS && leave_key == MPI_KEYVAL_INVALID) {
        code = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, on_leaving, &leave_key, NULL);
        if (code == MPI_SUCCESS)
            code = MPI_Comm_set_attr(MPI_COMM_SELF, leave_key, NULL);
    }
    return code == MPI_SUCCESS ? TREK_OK : fail_call("preparing MPI", code);
}

static trek_status begin(bool *initialised_here)
{
    trek_status status = initialise();
    if (status == TREK_OK)
        status = make_own();
    *initialised_here = ours;
    if (status != TREK_OK)
        return status;
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(version, &length);
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    shown->any_thread = level == MPI_THREAD_SERIALIZED || level == MPI_THREAD_MULTIPLE;
    snprintf(shown->library, sizeof shown->library, "%.*s", (int)strcspn(version, ",\n"), version);
    MPI_Comm_rank(MPI_COMM_WORLD, &shown->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &shown->world);
    const char *local = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    if (!local)
        local = getenv("MPI_LOCALNRANKS");
    shown->local_world = local && atoi(local) > 0 ? atoi(local) : shown->world;
    return TREK_OK;
}

static void end(void)
{
    int finalised = 0;
    MPI_Finalized(&finalised);
    if (!ours || finalised)
        return;
    ending = true;
    for (int op = 0; op <= TREK_REDUCTION_PROD; op++)
        MPI_Op_free(&own_ops[op]);
    MPI_Comm_free_keyval(&leave_key);
    MPI_Finalize();
}

/* --- groups ------------------------------------------------------------------------------ */

/* Makes a communicator of those processes, in that order. MPI can only do so by waiting for them. */
static int create_group(const int *ranks, int n, MPI_Comm *comm)
{
    MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
    int code = MPI_Comm_group(MPI_COMM_WORLD, &all);
    if (code == MPI_SUCCESS)
        code = MPI_Group_incl(all, n, ranks, &some);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_create_group(MPI_COMM_WORLD, some, GROUP_TAG, comm);
    if (some != MPI_GROUP_NULL)
        MPI_Group_free(&some);
    if (all != MPI_GROUP_NULL)
        MPI_Group_free(&all);
    return code;
}

static trek_status group_new(const int *ranks, int rank, int world, trek_async_group **result, trek_async_request *request)
{
    trek_async_group *group = host->alloc(sizeof *group);
    if (!group)
        return TREK_ERR_MEMORY;
    MPI_Request under_way = MPI_REQUEST_NULL;
    group->comm = MPI_COMM_NULL;
    group->rank = rank;
    group->world = world;
    int code = ranks ? create_group(ranks, world, &group->comm) : MPI_Comm_idup(MPI_COMM_WORLD, &group->comm, &under_way);
    trek_status status = started(ranks ? "MPI_Comm_create_group" : "MPI_Comm_idup", code, under_way, request);
    if (status != TREK_OK) {
        host->free(group);
        return status;
    }
    *result = group;
    return TREK_OK;
}

/* The program's error handler for MPI_COMM_WORLD was inherited. */
static trek_status group_ready(trek_async_group *group)
{
    int code = MPI_Comm_set_errhandler(group->comm, MPI_ERRORS_RETURN);
    return code == MPI_SUCCESS ? TREK_OK : fail_call("MPI_Comm_set_errhandler", code);
}

static bool group_free(trek_async_group *group, bool done)
{
    if (!done)
        return false; /* MPI may still write to it */
    MPI_Comm_free(&group->comm);
    host->free(group);
    return true;
}

/* --- calls ---------------------------------------------------------------------------------- */

static trek_status exchange(trek_async_group *group, const void *mine, size_t bytes, void *notes, size_t stride,
                            trek_async_request *requests)
{
    int rank = group->rank, world = group->world;
    trek_status status = TREK_OK;
    for (int r = 0; r < world && status == TREK_OK; r++) {
        MPI_Request own = MPI_REQUEST_NULL;
        if (r == rank)
            continue;
        int code = MPI_Irecv((char *)notes + (size_t)r * stride, (int)stride, MPI_BYTE, r, MEETING_TAG, group->comm, &own);
        status = started("MPI_Irecv", code, own, &requests[r]);
    }
    for (int k = 1; k < world && status == TREK_OK; k++) { /* so that not all send to the same rank first */
        MPI_Request own = MPI_REQUEST_NULL;
        int to = (rank + k) % world, code = MPI_Isend(mine, (int)bytes, MPI_BYTE, to, MEETING_TAG, group->comm, &own);
        status = started("MPI_Isend", code, own, &requests[world + to]);
    }
    return status;
}

static trek_status all_reduce(trek_async_group *group, void *data, int64_t count, trek_dtype dtype, trek_reduction op,
                              trek_async_request *request)
{
    MPI_Request own = MPI_REQUEST_NULL;
    int code = MPI_Iallreduce(MPI_IN_PLACE, data, (int)count, type_of(dtype), op_of(dtype, op), group->comm, &own);
    return started("MPI_Iallreduce", code, own, request);
}

static trek_status reduce(trek_async_group *group, void *data, int64_t count, trek_dtype dtype, trek_reduction op, int root,
                          trek_async_request *request)
{
    MPI_Request own = MPI_REQUEST_NULL;
    bool here = root == group->rank;
    int code = MPI_Ireduce(here ? MPI_IN_PLACE : data, here ? data : NULL, (int)count, type_of(dtype), op_of(dtype, op), root,
                           group->comm, &own);
    return started("MPI_Ireduce", code, own, request);
}

static trek_status broadcast(trek_async_group *group, void *data, int64_t bytes, int root, trek_async_request *request)
{
    MPI_Request own = MPI_REQUEST_NULL;
    int code = MPI_Ibcast(data, (int)bytes, MPI_BYTE, root, group->comm, &own);
    return started("MPI_Ibcast", code, own, request);
}

static trek_status all_gather(trek_async_group *group, const void *part, int64_t bytes, void *all, trek_async_request *request)
{
    MPI_Request own = MPI_REQUEST_NULL;
    int code = MPI_Iallgather(part, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, group->comm, &own);
    return started("MPI_Iallgather", code, own, request);
}

static trek_status reduce_scatter(trek_async_group *group, void *all, void *part, int64_t count, trek_dtype dtype,
                                  trek_reduction op, trek_async_request *request)
{
    MPI_Request own = MPI_REQUEST_NULL;
    int code = MPI_Ireduce_scatter_block(all, part, (int)count, type_of(dtype), op_of(dtype, op), group->comm, &own);
    return started("MPI_Ireduce_scatter_block", code, own, request);
}

static trek_status test(trek_async_group *group, int n, trek_async_request *requests, bool *done)
{
    (void)group;
    *done = true;
    for (int k = 0; k < n; k++) {
        MPI_Request own;
        memcpy(&own, &requests[k].word, sizeof own);
        if (own == MPI_REQUEST_NULL)
            continue;
        int flag = 0, code = MPI_Test(&own, &flag, MPI_STATUS_IGNORE);
        memcpy(&requests[k].word, &own, sizeof own);
        if (code != MPI_SUCCESS)
            return fail_call("MPI_Test", code);
        *done = *done && flag;
    }
    return TREK_OK;
}

__attribute__((visibility("default"))) trek_status trek_mpi_open(int abi, const trek_async_host *given, trek_async_table *table,
                                                                 char *why,
                                                                 size_t size);

trek_status trek_mpi_open(int abi, const trek_async_host *given, trek_async_table *table, char *why, size_t size)
{
    if (abi != TREK_ASYNC_ABI || given->abi != TREK_ASYNC_ABI) {
        snprintf(why, size, "libtrek-mpi was built for another version of trek (%d, not %d)", TREK_ASYNC_ABI, abi);
        return TREK_ERR_UNSUPPORTED;
    }
    host = given;
    shown = table;
    *table = (trek_async_table){
        .abi = TREK_ASYNC_ABI, .begin = begin, .end = end, .group_new = group_new,
        .group_ready = group_ready, .group_free = group_free, .exchange = exchange,
        .all_reduce = all_reduce, .reduce = reduce, .broadcast = broadcast, .all_gather = all_gather,
        .reduce_scatter = reduce_scatter, .test = test,
    };
    return TREK_OK;
}
