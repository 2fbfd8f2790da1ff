/* SPDX-License-Identifier: Apache-2.0 */
/* How MPI is initialised and how groups over it are made. The calls are those of async/. */
#include "distributed/comm/mpi/mpi.h"

#include <stdio.h>

#include "distributed/comm/async/async_internal.h"
#include "distributed/system/system.h"
#include "tensor/environment.h"

/* Pieces that stay in the cache while MPI works on them are several times faster than large ones on one machine. */
enum { DEFAULT_PIECE = 256 << 10 };

TREK_PER_PROCESS(trek_async_service, service,
                 { .name = "MPI", .engine_name = "mpi", .plugin = "trek-mpi", .open_name = TREK_MPI_OPEN,
                   .ends_together = true,
                   .packages = "libopenmpi-dev openmpi-bin",
                   .piece_variable = "TREK_MPI_PIECE",
                   .default_piece = DEFAULT_PIECE,
                   .lock = TREK_LOCK_INIT,
                   .calling = TREK_LOCK_INIT });

void trek_comm_mpi_set_sizes(size_t piece, int direct) { trek_async_set_sizes(service(), piece, direct); }

bool trek_comm_mpi_there(char *why, size_t size)
{
    static const char *const signs[] = { "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK" };
    bool found = false;
    for (size_t k = 0; k < sizeof signs / sizeof *signs; k++)
        found = found || trek_process_variable(signs[k]);
    if (!found)
        snprintf(why, size, "no MPI launcher has started this process");
    return found && trek_async_thread_there(service(), why, size);
}

static trek_status check_world(const trek_async_table *table, trek_control *control)
{
    if (!control)
        return TREK_OK;
    int rank = trek_control_process(control), world = trek_control_processes(control);
    if (rank == table->rank && world == table->world)
        return TREK_OK;
    return trek_fail(TREK_ERR_COMM, "comm_init: this is process %d of %d of the job, but rank %d of %d for MPI (%s)%s", rank,
                     world, table->rank, table->world, table->library,
                     table->world == 1 ? ": was it started by mpirun or srun?" : "");
}

/* ranks: the ranks of its processes in MPI_COMM_WORLD; NULL: all of MPI_COMM_WORLD. */
static trek_async_comm *new_comm(trek_control *control, const int *ranks)
{
    const trek_async_table *table = &service()->table;
    trek_async_opts opts = {
        .rank = table->rank, .world = table->world, .local_world = table->local_world, .control = control, .ranks = ranks
    };
    if (ranks) {
        opts.rank = trek_control_process(control);
        opts.world = trek_control_processes(control);
        opts.local_world = opts.world < table->local_world ? opts.world : table->local_world;
    }
    return trek_async_comm_new(service(), &opts);
}

static trek_status meet(trek_control *control, trek_async_comm *comm, trek_status status)
{
    (void)comm;
    return control ? trek_async_agree(control, status, "cannot use MPI") : status;
}

/* From here on all processes have come, whatever their status. */
static trek_status make(trek_control *control, const int *ranks, trek_status status, trek_comm **result)
{
    trek_async_comm *comm = status == TREK_OK ? new_comm(control, ranks) : NULL;
    return trek_async_comm_form(control, comm, status, meet, result);
}

trek_status trek_comm_mpi_new(trek_control *control, trek_comm **result)
{
    if (!result)
        return trek_fail_missing("comm_mpi_new", "handle");
    trek_status status = trek_async_thread_use(service(), TREK_ASYNC_JOIN_NS);
    if (status == TREK_OK)
        status = check_world(&service()->table, control);
    return make(control, NULL, status, result);
}

/* A process that fails must still meet the others, which wait for it. */
trek_status trek_comm_mpi_new_part(trek_control *control, trek_comm **result)
{
    int n = trek_control_processes(control), ranks[TREK_MAX_RANKS];
    trek_status status = trek_async_thread_use(service(), TREK_ASYNC_JOIN_NS);
    int own = status == TREK_OK ? service()->table.rank : -1;
    trek_status met = trek_control_gather(control, &own, sizeof own, ranks, TREK_ASYNC_JOIN_NS);
    if (status == TREK_OK)
        status = met;
    for (int r = 0; r < n && status == TREK_OK; r++)
        if (ranks[r] < 0)
            status = trek_fail(TREK_ERR_UNSUPPORTED, "comm_init: process %d cannot use MPI", r);
    return met == TREK_OK ? make(control, ranks, status, result) : status;
}
