/* SPDX-License-Identifier: Apache-2.0 */
/* How groups over Gloo are made: each process listens, tells the others by the control channel where, and connects. */
#include "distributed/comm/gloo/gloo.h"

#include <limits.h>
#include <net/if.h>
#include <string.h>

#include "distributed/comm/async/async_internal.h"
#include "distributed/system/system.h"
#include "tensor/environment.h"
#include "tensor/memory_internal.h"
#include "tensor/pool.h"

/* Pieces follow each other, so one must outweigh the steps of the ring: 25 MiB between four processes take a quarter of the
 * time that they take in pieces of 256 KiB. */
enum { DEFAULT_PIECE = 4 << 20 };

TREK_PER_PROCESS(trek_async_service, service,
                 { .name = "Gloo", .engine_name = "gloo", .plugin = "trek-gloo", .open_name = TREK_GLOO_OPEN,
                   .packages = "libgloo-dev g++",
                   .lock = TREK_LOCK_INIT, .calling = TREK_LOCK_INIT });

void trek_comm_gloo_set_sizes(size_t piece, int direct)
{
    atomic_store(&service()->piece, piece);
    atomic_store(&service()->direct, direct);
}

bool trek_comm_gloo_there(char *why, size_t size) { return trek_async_thread_there(service(), why, size); }

static trek_async_comm *new_comm(trek_control *control)
{
    size_t piece = atomic_load(&service()->piece);
    if (!piece)
        piece = (size_t)trek_process_number("TREK_GLOO_PIECE", 1, LONG_MAX, DEFAULT_PIECE);
    int world = trek_control_processes(control);
    return trek_async_comm_new(service(), &(trek_async_opts){ .rank = trek_control_process(control), .world = world,
                                                             .local_world = world,
                                                             .piece = piece, .direct = atomic_load(&service()->direct),
                                                             .control = control, .by_channel = true });
}

/* --- addresses -------------------------------------------------------------------------------------- */

static size_t card_bytes(int world) { return (sizeof(trek_async_card) + (size_t)world * sizeof(uint16_t) + 7) / 8 * 8; }

static const trek_async_card *card_of(const char *cards, int world, int r)
{
    return (const trek_async_card *)(const void *)(cards + (size_t)r * card_bytes(world));
}

/* Its thread is about to say why. */
static trek_status connection_lost(const trek_async_comm *comm)
{
    for (int k = 0; k < 2000 && !trek_control_ended(comm->base.control); k++)
        trek_sleep_ns(1000000);
    if (trek_control_ended(comm->base.control))
        return trek_control_fail(comm->base.control);
    return trek_fail(TREK_ERR_COMM, "the address of process %d is not known: its control connection is lost", comm->base.rank);
}

static trek_status listen_on(trek_async_comm *comm, trek_async_card *card)
{
    char address[256];
    const char *interface = trek_process_variable("TREK_GLOO_INTERFACE");
    if (interface && !*interface)
        interface = NULL;
    if (interface && if_nametoindex(interface) == 0)
        return trek_fail(TREK_ERR_ARGUMENT, "TREK_GLOO_INTERFACE=%s: this machine has no such network interface", interface);
    if (!trek_control_own_address(comm->base.control, address, sizeof address))
        return connection_lost(comm);
    trek_lock_acquire(&service()->calling);
    trek_status status = comm->table->group_listen(comm, comm->base.rank, comm->base.world, address, interface, &comm->group,
                                                   card);
    trek_lock_release(&service()->calling);
    return status;
}

static trek_status check_cards(const char *cards, int world)
{
    for (int r = 0; r < world; r++) {
        trek_status status = (trek_status)card_of(cards, world, r)->status;
        if (status != TREK_OK)
            return trek_fail(status, "process %d cannot use Gloo: %s", r, trek_status_text(status));
    }
    return TREK_OK;
}

/* Processes at the same address share its cores. */
static int count_local(const char *cards, int world, int rank)
{
    int local = 0;
    for (int r = 0; r < world; r++)
        local += memcmp(card_of(cards, world, r)->address, card_of(cards, world, rank)->address,
                        sizeof(trek_async_card){ 0 }.address) == 0;
    return local;
}

static trek_status connect_all(trek_async_comm *comm, const char *cards)
{
    comm->spin = 2 * count_local(cards, comm->base.world, comm->base.rank) <= trek_cores();
    trek_lock_acquire(&service()->calling);
    trek_status status = comm->table->group_connect(comm->group, cards, card_bytes(comm->base.world), &comm->requests[0]);
    trek_lock_release(&service()->calling);
    return status;
}

/* comm NULL: this process has failed with `status`, but the others are waiting for its card. */
static trek_status meet(trek_control *control, trek_async_comm *comm, trek_status status)
{
    int world = trek_control_processes(control);
    size_t bytes = card_bytes(world);
    char *cards = trek_calloc((size_t)world + 1, bytes);
    if (!cards) {
        trek_control_end(control, TREK_ERR_MEMORY, "a process has no memory to join the group");
        return trek_error_status();
    }
    trek_async_card *own = (trek_async_card *)(void *)(cards + (size_t)world * bytes);
    if (status == TREK_OK)
        status = listen_on(comm, own);
    own->status = (int32_t)status;
    trek_status met = trek_control_gather(control, own, bytes, cards, TREK_ASYNC_JOIN_NS);
    if (status == TREK_OK)
        status = met == TREK_OK ? check_cards(cards, world) : met;
    if (status == TREK_OK)
        status = connect_all(comm, cards);
    trek_free(cards);
    return status;
}

trek_status trek_comm_gloo_new(trek_control *control, trek_comm **result)
{
    if (!control || !result)
        return trek_fail_missing("comm_gloo_new", control ? "place for the handle" : "control channel");
    trek_status status = trek_async_thread_use(service(), TREK_ASYNC_JOIN_NS);
    trek_async_comm *comm = status == TREK_OK ? new_comm(control) : NULL;
    if (status == TREK_OK && !comm)
        status = trek_error_status();
    status = meet(control, comm, status);
    if (status == TREK_OK)
        status = trek_async_comm_join(comm);
    if (status == TREK_OK)
        *result = &comm->base;
    else if (comm)
        trek_async_comm_free(comm);
    return status;
}
