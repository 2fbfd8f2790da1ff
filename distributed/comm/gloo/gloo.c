/* SPDX-License-Identifier: Apache-2.0 */
/* How groups over Gloo are made. Each process listens, announces its address over the control channel, and connects. */
#include "distributed/comm/gloo/gloo.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>

#include "distributed/comm/async/async_internal.h"
#include "distributed/comm/gloo/mesh.h"
#include "distributed/system/socket.h"
#include "distributed/system/system.h"
#include "tensor/environment.h"
#include "tensor/memory_internal.h"
#include "tensor/pool.h"

/* Pieces follow each other, so a piece must take longer than the steps of the ring. 25 MiB between four processes
 * take a quarter of the time that they take in pieces of 256 KiB. */
enum { DEFAULT_PIECE = 4 << 20 };

TREK_PER_PROCESS(trek_async_service, service,
                 { .name = "Gloo", .engine_name = "gloo", .plugin = "trek-gloo", .open_name = TREK_GLOO_OPEN,
                   .packages = "libgloo-dev g++",
                   .piece_variable = "TREK_GLOO_PIECE",
                   .default_piece = DEFAULT_PIECE,
                   .lock = TREK_LOCK_INIT,
                   .calling = TREK_LOCK_INIT });

void trek_comm_gloo_set_sizes(size_t piece, int direct) { trek_async_set_sizes(service(), piece, direct); }

bool trek_comm_gloo_there(char *why, size_t size) { return trek_async_thread_there(service(), why, size); }

/* --- connections ------------------------------------------------------------------------------------ */

/* Waits until the thread says why a connection was lost. */
static trek_status connection_lost(const trek_async_comm *comm)
{
    for (int k = 0; k < 2000 && !trek_control_ended(comm->base.control); k++)
        trek_sleep_ns(1000000);
    if (trek_control_ended(comm->base.control))
        return trek_control_fail(comm->base.control);
    return trek_fail(TREK_ERR_COMM, "comm_init: the address of process %d is unknown: its control connection is lost",
                     comm->base.rank);
}

/* Replaces `address` by the address of the interface in the same family. */
static trek_status address_of_interface(const char *interface, char *address, size_t size)
{
    struct ifaddrs *all = NULL;
    int family = strchr(address, ':') ? AF_INET6 : AF_INET;
    bool found = false;
    if (if_nametoindex(interface) == 0)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "comm_init: TREK_GLOO_INTERFACE=%s: this machine has no such network interface; name one that it has",
                         interface);
    if (getifaddrs(&all) != 0)
        return trek_fail(TREK_ERR_COMM, "comm_init: TREK_GLOO_INTERFACE=%s: the addresses of this machine cannot be read",
                         interface);
    for (const struct ifaddrs *one = all; one && !found; one = one->ifa_next) {
        socklen_t length = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        found = one->ifa_addr && one->ifa_addr->sa_family == family && strcmp(one->ifa_name, interface) == 0 &&
                getnameinfo(one->ifa_addr, length, address, (socklen_t)size, NULL, 0, NI_NUMERICHOST) == 0;
    }
    freeifaddrs(all);
    return found ? TREK_OK
                 : trek_fail(TREK_ERR_UNSUPPORTED,
                             "comm_init: TREK_GLOO_INTERFACE=%s: it has no address of the family of process 0's; name an "
                             "interface that has one",
                             interface);
}

static trek_status listen_on(trek_async_comm *comm, trek_mesh_card *card, int *listening)
{
    const char *interface = trek_process_variable("TREK_GLOO_INTERFACE");
    if (!trek_control_own_address(comm->base.control, card->address, sizeof card->address))
        return connection_lost(comm);
    trek_status status = interface && *interface ? address_of_interface(interface, card->address, sizeof card->address) : TREK_OK;
    int port = 0;
    if (status == TREK_OK)
        status = trek_socket_listen(card->address, 0, listening, &port);
    card->port = port;
    if (status != TREK_OK)
        return status;
    trek_lock_acquire(&service()->calling);
    status = comm->table->group_open(comm, comm->base.rank, comm->base.world, &comm->group);
    trek_lock_release(&service()->calling);
    return status;
}

/* Counts the processes at the same address, which share its cores. */
static int count_local(const trek_mesh_card *cards, int world, int rank)
{
    int local = 0;
    for (int r = 0; r < world; r++)
        local += strcmp(cards[r].address, cards[rank].address) == 0;
    return local;
}

static trek_status connect_all(trek_async_comm *comm, int listening, const trek_mesh_card *cards)
{
    int world = comm->base.world;
    int *sockets = trek_calloc((size_t)world, sizeof *sockets);
    if (!sockets)
        return TREK_ERR_MEMORY;
    comm->spin = 2 * count_local(cards, world, comm->base.rank) <= trek_cores();
    trek_status status = trek_mesh_connect(comm->base.control, listening, cards, TREK_ASYNC_JOIN_NS, sockets);
    if (status == TREK_OK) {
        for (int r = 0; r < world; r++)
            trek_socket_give(sockets[r]);
        trek_lock_acquire(&service()->calling);
        status = comm->table->group_connect(comm->group, sockets, &comm->requests[0]);
        trek_lock_release(&service()->calling);
    }
    trek_free(sockets);
    return status;
}

/* Tells the others where this process listens, or that it has failed, and connects to them. */
static trek_status meet(trek_control *control, trek_async_comm *comm, trek_status status)
{
    int world = trek_control_processes(control), listening = -1;
    trek_mesh_card *cards = trek_calloc((size_t)world + 1, sizeof *cards);
    if (!cards) {
        trek_control_end(control, TREK_ERR_MEMORY, "a process has no memory to join the group");
        return trek_error_status();
    }
    trek_mesh_card *own = &cards[world];
    if (status == TREK_OK)
        status = listen_on(comm, own, &listening);
    own->status = (int32_t)status;
    trek_status met = trek_control_gather(control, own, sizeof *own, cards, TREK_ASYNC_JOIN_NS);
    if (status == TREK_OK)
        status = met == TREK_OK ? trek_mesh_check(cards, world) : met;
    if (status == TREK_OK)
        status = connect_all(comm, listening, cards);
    trek_socket_close(listening);
    trek_free(cards);
    return status;
}

trek_status trek_comm_gloo_new(trek_control *control, trek_comm **result)
{
    if (!control || !result)
        return trek_fail_missing("comm_gloo_new", control ? "handle" : "control channel");
    trek_status status = trek_async_thread_use(service(), TREK_ASYNC_JOIN_NS);
    int world = trek_control_processes(control);
    const trek_async_opts opts = {
        .rank = trek_control_process(control), .world = world, .local_world = world, .control = control, .by_channel = true
    };
    trek_async_comm *comm = status == TREK_OK ? trek_async_comm_new(service(), &opts) : NULL;
    return trek_async_comm_form(control, comm, status, meet, result);
}
