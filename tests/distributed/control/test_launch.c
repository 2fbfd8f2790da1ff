/* SPDX-License-Identifier: Apache-2.0 */
/* Which process of which job: the environments of the launchers, and those that contradict themselves. */
#include <sys/stat.h>
#include <unistd.h>

#include "distributed/comm/comm.h"
#include "distributed/control/launch.h"
#include "distributed/stop_internal.h"
#include "tensor/rank_context.h"
#include "tests/support/unit.h"

extern char **environ;

/* Replaces the environment's variables of launchers by these lines. */
static void use_environment(const char *lines)
{
    static const char *const prefixes[] = { "SLURM",  "OMPI_",   "PMI",   "TREK_",  "RANK=", "WORLD_SIZE=",
                                            "LOCAL_", "MASTER_", "TORCH", "GROUP_", "ROLE_" };
    for (char **variable = environ; *variable;) {
        bool known = false;
        for (size_t k = 0; k < sizeof prefixes / sizeof *prefixes; k++)
            known = known || strncmp(*variable, prefixes[k], strlen(prefixes[k])) == 0;
        if (!known) {
            variable++;
            continue;
        }
        char name[128] = "";
        sscanf(*variable, "%127[^=]", name);
        unsetenv(name);
        variable = environ;
    }
    while (*lines) {
        char name[128] = "", value[512] = "";
        assert_int_equal(sscanf(lines, "%127[^=\n]=%511[^\n]", name, value) >= 1, 1);
        setenv(name, value, 1);
        lines += strcspn(lines, "\n");
        lines += *lines == '\n';
    }
}

static const char plain_shell[] = "";

/* trek-run -n 4, process 2. */
static const char trek_run[] = "TREK_RANK=2\nTREK_WORLD_SIZE=4\nTREK_LOCAL_RANK=2\nTREK_LOCAL_WORLD_SIZE=4\nTREK_ADDRESS=127.0.0."
                               "1\nTREK_PORT=23456\nTREK_TOKEN=7fd3a8\n";

/* torchrun --nnodes=2 --nproc-per-node=2, second node, first process. */
static const char torchrun[] =
    "GROUP_RANK=1\nGROUP_WORLD_SIZE=2\nLOCAL_RANK=0\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR=node-a\nMASTER_PORT=29500\nRANK=2\nROLE_"
    "NAME=default\n"
    "ROLE_RANK=2\nROLE_WORLD_SIZE=4\nTORCHELASTIC_MAX_RESTARTS=0\nTORCHELASTIC_RESTART_COUNT=0\nTORCHELASTIC_RUN_ID=none\n"
    "TORCHELASTIC_USE_AGENT_STORE=True\nTORCH_NCCL_ASYNC_ERROR_HANDLING=1\nWORLD_SIZE=4\n";

/* mpirun -n 2 of Open MPI 4.1.4 on one machine, process 1, as recorded. */
static const char open_mpi[] =
    "OMPI_APP_CTX_NUM_PROCS=2\nOMPI_COMM_WORLD_LOCAL_RANK=1\nOMPI_COMM_WORLD_LOCAL_SIZE=2\nOMPI_COMM_WORLD_NODE_RANK=1\n"
    "OMPI_COMM_WORLD_RANK=1\nOMPI_COMM_WORLD_SIZE=2\nOMPI_FIRST_RANKS=0\nOMPI_MCA_ess_base_jobid=988545025\nOMPI_MCA_ess_base_"
    "vpid=1\n"
    "OMPI_MCA_orte_ess_num_procs=2\nOMPI_MCA_orte_hnp_uri=988545024.0;tcp://192.0.2.2:32953;tcp6://[fd00::2]:37801\n"
    "OMPI_MCA_orte_num_nodes=1\nPMIX_NAMESPACE=988545025\nPMIX_RANK=1\n";

/* The same on two machines. */
static const char open_mpi_two[] =
    "OMPI_COMM_WORLD_LOCAL_RANK=0\nOMPI_COMM_WORLD_LOCAL_SIZE=2\nOMPI_COMM_WORLD_RANK=2\nOMPI_COMM_WORLD_SIZE=4\n"
    "OMPI_MCA_ess_base_jobid=988545025\nOMPI_MCA_orte_hnp_uri=988545024.0;tcp://192.0.2.2,172.17.0.1:32953;tcp6://"
    "[fd00::2]:37801\n";

/* srun -N 2 -n 4, process 3. */
static const char slurm[] =
    "SLURM_JOB_ID=4711\nSLURM_JOBID=4711\nSLURM_JOB_NODELIST=gpu[007-009]\nSLURM_JOB_NUM_NODES=3\nSLURM_LAUNCH_NODE_IPADDR=10.1."
    "0.7\n"
    "SLURM_LOCALID=1\nSLURM_NNODES=2\nSLURM_NODEID=1\nSLURM_NPROCS=4\nSLURM_NTASKS=4\nSLURM_PROCID=3\nSLURM_SRUN_COMM_HOST=10.1."
    "0.7\n"
    "SLURM_STEPID=2\nSLURM_STEP_ID=2\nSLURM_STEP_NODELIST=gpu[008-009]\nSLURM_STEP_NUM_NODES=2\nSLURM_STEP_NUM_TASKS=4\n"
    "SLURM_STEP_TASKS_PER_NODE=2(x2)\nSLURM_TASKS_PER_NODE=2(x2)\n";

/* The shell of a batch script of the same allocation: no step. */
static const char slurm_batch[] = "SLURM_JOB_ID=4711\nSLURM_JOBID=4711\nSLURM_JOB_NODELIST=gpu[007-009]\nSLURM_JOB_NUM_NODES="
                                  "3\nSLURM_LOCALID=0\nSLURM_NNODES=3\n"
                                  "SLURM_NODEID=0\nSLURM_NPROCS=6\nSLURM_NTASKS=6\nSLURM_PROCID=0\nSLURM_TASKS_PER_NODE=2(x3)\n";

/* salloc's interactive step: one process, whatever the allocation is for. */
static const char slurm_interactive[] =
    "SLURM_JOB_ID=4711\nSLURM_LOCALID=0\nSLURM_NTASKS=6\nSLURM_PROCID=0\nSLURM_STEP_ID=4294967290\nSLURM_STEP_NODELIST=gpu007\n"
    "SLURM_STEP_NUM_NODES=1\nSLURM_STEP_NUM_TASKS=1\n";

typedef struct described {
    const char *environment, *more, *source;
    int process, processes, local;
    const char *address;
    int port; /* 0: any that is not 0; -1: not looked at */
    const char *token;
} described;

static void test_launchers(void **state)
{
    static const described rows[] = {
        { plain_shell, "", "single process", 0, 1, -1, "127.0.0.1", -1, "" },
        { trek_run, "", "trek-run", 2, 4, 2, "127.0.0.1", 23456, "7fd3a8" },
        { torchrun, "", "torchrun", 2, 4, 0, "node-a", 29501, "torchrun none.29500" },
        { torchrun, "WORLD_SIZE=2\nRANK=1\n", "torchrun", 1, 2, 0, "127.0.0.1", 29501, "torchrun none.29500" },
        { torchrun, "TREK_PORT=1234\nTREK_TOKEN=secret\n", "torchrun", 2, 4, 0, "node-a", 1234, "secret" },
        { open_mpi, "", "Open MPI", 1, 2, 1, "127.0.0.1", 0, "Open MPI 988545025." },
        { open_mpi, "RANK=1\nWORLD_SIZE=2\nMASTER_PORT=5000\n", "torchrun", 1, 2, 1, "127.0.0.1", 5000, "torchrun .5000" },
        { open_mpi_two, "", "Open MPI", 2, 4, 0, "192.0.2.2", 0, "Open MPI 988545025." },
        { open_mpi_two, "MASTER_ADDR=head\nMASTER_PORT=5001\n", "Open MPI", 2, 4, 0, "head", 5001, "Open MPI 988545025." },
        { slurm, "", "Slurm", 3, 4, 1, "gpu008", 0, "Slurm 4711.2" },
        { slurm, "MASTER_ADDR=gpu008-ib\nMASTER_PORT=6000\n", "Slurm", 3, 4, 1, "gpu008-ib", 6000, "Slurm 4711.2" },
        { slurm_batch, "", "single process", 0, 1, -1, "127.0.0.1", -1, "" },
        { slurm_interactive, "", "Slurm", 0, 1, 0, "127.0.0.1", -1, "Slurm 4711.4294967290" },
        /* who comes to a job is no process of another one, and knows only where it is */
        { plain_shell, "TREK_JOIN=new\nTREK_ADDRESS=one\nTREK_PORT=29500\nTREK_TOKEN=secret\n", "TREK_JOIN", 1024, 2, -1, "one",
          29500, "secret" },
        { slurm, "TREK_JOIN=new\nTREK_ADDRESS=one\nTREK_PORT=29500\nTREK_LOCAL_RANK=2\nTREK_LOCAL_WORLD_SIZE=3\n", "TREK_JOIN",
          1026, 2, 2, "one", 29500, "" },
        /* srun starts one torchrun on each of four nodes */
        { slurm, torchrun, "torchrun", 2, 4, 0, "node-a", 29501, "torchrun none.29500" },
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        const described *row = &rows[k];
        char all[4096];
        trek_launch launch;
        snprintf(all, sizeof all, "%s%s", row->environment, row->more);
        use_environment(all);
        if (trek_launch_find(NULL, &launch) != TREK_OK)
            fail_msg("row %zu: %s", k, trek_error());
        assert_string_equal(launch.source, row->source);
        assert_int_equal(launch.process, row->process);
        assert_int_equal(launch.processes, row->processes);
        assert_int_equal(launch.local, row->local);
        assert_string_equal(launch.address, row->address);
        if (row->port > 0)
            assert_int_equal(launch.port, row->port);
        if (row->port == 0)
            assert_true(launch.port >= 10000 && launch.port < 30000);
        if (row->token[0] || launch.processes == 1)
            assert_string_equal(launch.token, row->token);
        assert_int_equal(trek_comm_world_described(NULL), row->processes);
    }
}

/* What a job writes has the same name on all its processes, and another one than other jobs' where something tells them apart. */
static void test_names_of_jobs(void **state)
{
    char parent[64], torch[64];
    snprintf(parent, sizeof parent, "127.0.0.1.23456.%ld", (long)getppid());
    snprintf(torch, sizeof torch, "mine.29500.%ld", (long)getppid());
    const struct {
        const char *environment, *more, *job;
    } rows[] = { { plain_shell, "", "" },
                 { slurm, "", "4711.2" },
                 { slurm, "SLURM_PROCID=0\nSLURM_LOCALID=0\n", "4711.2" },
                 { slurm_interactive, "", "" },
                 { open_mpi, "", "988545025" },
                 { open_mpi_two, "", "988545025" },
                 { open_mpi_two, "OMPI_MCA_ess_base_jobid=\nPMIX_NAMESPACE=prterun-a-12@1\n", "prterun-a-12@1" },
                 { torchrun, "", "none.29500" },
                 { torchrun, "TORCHELASTIC_RUN_ID=mine\nWORLD_SIZE=2\nRANK=0\n", torch },
                 { trek_run, "", parent },
                 { trek_run, "TREK_ADDRESS=10.0.0.1\nTREK_PORT=29500\n", "10.0.0.1.29500" } };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        char all[4096];
        trek_launch launch;
        snprintf(all, sizeof all, "%s%s", rows[k].environment, rows[k].more);
        use_environment(all);
        if (trek_launch_find(NULL, &launch) != TREK_OK)
            fail_msg("row %zu: %s", k, trek_error());
        assert_string_equal(launch.job, rows[k].job);
    }
}

/* The same job has the same port on all processes, another step another one. */
static void test_port_of_a_job(void **state)
{
    trek_launch first, second;
    use_environment(slurm);
    assert_int_equal(trek_launch_find(NULL, &first), TREK_OK);
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_LOCALID", "0", 1);
    assert_int_equal(trek_launch_find(NULL, &second), TREK_OK);
    assert_int_equal(first.port, second.port);
    assert_string_equal(first.token, second.token);
    setenv("SLURM_STEP_ID", "3", 1);
    assert_int_equal(trek_launch_find(NULL, &second), TREK_OK);
    assert_int_not_equal(first.port, second.port);
    assert_string_not_equal(first.token, second.token);
}

static const char *secret_file(const char *text, mode_t mode)
{
    static char line[128];
    FILE *file = fopen("launch.secret", "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    assert_int_equal(chmod("launch.secret", mode), 0);
    snprintf(line, sizeof line, "TREK_TOKEN_FILE=launch.secret\n");
    return line;
}

/* On a network a job has a secret, or says that it needs none; a job's name is none. */
static void test_secrets(void **state)
{
    static const char hand[] = "TREK_RANK=1\nTREK_WORLD_SIZE=2\nTREK_PORT=29500\n", far[] = "TREK_ADDRESS=192.0.2.1\n";
    static const char good[] = "0123456789abcdef0123\n", *const none = "has no secret", *const mode = "of mode 0600";
    const struct {
        const char *environment, *more, *file;
        mode_t mode;
        const char *error, *token;
    } rows[] = {
        { slurm, "", NULL, 0, none, NULL },
        { torchrun, "", NULL, 0, none, NULL },
        { open_mpi_two, "", NULL, 0, none, NULL },
        { hand, far, NULL, 0, none, NULL },
        { hand, "TREK_ADDRESS=node-a\nTREK_TOKEN=secret\n", NULL, 0, "at least 16", NULL },
        { hand, "TREK_ADDRESS=node-a\nTREK_TOKEN=secret-of-the-job\n", NULL, 0, NULL, "secret-of-the-job" },
        { hand, "TREK_ADDRESS=::1\n", NULL, 0, NULL, "" },
        { hand, "TREK_ADDRESS=localhost\nTREK_TOKEN=short\n", NULL, 0, NULL, "short" },
        { slurm, "TREK_TOKEN=none\n", NULL, 0, NULL, "Slurm 4711.2" },
        { slurm, "", good, 0600, NULL, "0123456789abcdef0123" },
        { slurm, "TREK_TOKEN=secret-of-the-job\n", good, 0600, NULL, "secret-of-the-job" },
        { torchrun, "", "0123456789abcdef", 0400, NULL, "0123456789abcdef" },
        { slurm, "", good, 0640, mode, NULL },
        { slurm, "", good, 0604, mode, NULL },
        { slurm, "", "0123456789abcde\nmore\n", 0600, "first line", NULL },
        { slurm, "", "", 0600, "first line", NULL },
        { slurm, "TREK_TOKEN_FILE=/nowhere/at/all\n", NULL, 0, "cannot be read", NULL },
        { slurm, "TREK_TOKEN_FILE=/dev/null\n", NULL, 0, mode, NULL },
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        char all[4096];
        trek_launch launch;
        snprintf(all, sizeof all, "%s%s%s", rows[k].environment, rows[k].more,
                 rows[k].file ? secret_file(rows[k].file, rows[k].mode) : "");
        use_environment(all);
        trek_status status = trek_launch_find(NULL, &launch);
        if (status == TREK_OK)
            status = trek_launch_check_secret(&launch);
        if ((status == TREK_OK) != !rows[k].error || (rows[k].error && !strstr(trek_error(), rows[k].error)))
            fail_msg("row %zu: %s", k, trek_error());
        trek_error_clear();
        if (rows[k].token)
            assert_string_equal(launch.token, rows[k].token);
        if (rows[k].error) { /* nothing is asked of the network */
            assert_null(trek_comm_init(NULL));
            trek_error_clear();
        }
    }
    use_environment("");
    unlink("launch.secret");
}

static void test_contradictions(void **state)
{
    static const struct { const char *environment, *more, *named[2]; } rows[] = {
        { plain_shell, "RANK=1\n", { "RANK is set", "WORLD_SIZE is not" } },
        { plain_shell, "WORLD_SIZE=4\n", { "WORLD_SIZE is set", "RANK is not" } },
        { plain_shell, "TREK_RANK=0\n", { "TREK_RANK", "TREK_WORLD_SIZE" } },
        { plain_shell, "RANK=4\nWORLD_SIZE=4\nMASTER_PORT=1\n", { "RANK=4", "WORLD_SIZE=4" } },
        { plain_shell, "RANK=-1\nWORLD_SIZE=4\nMASTER_PORT=1\n", { "RANK=\"-1\"", "whole number" } },
        { plain_shell, "RANK=one\nWORLD_SIZE=4\nMASTER_PORT=1\n", { "RANK=\"one\"", "whole number" } },
        { plain_shell, "RANK=1x\nWORLD_SIZE=4\nMASTER_PORT=1\n", { "RANK=\"1x\"", "whole number" } },
        { plain_shell, "RANK=1\nWORLD_SIZE=0\nMASTER_PORT=1\n", { "WORLD_SIZE=\"0\"", "whole number" } },
        { plain_shell, "RANK=1\nWORLD_SIZE=99999999999999999999\nMASTER_PORT=1\n", { "WORLD_SIZE", "whole number" } },
        { plain_shell, "RANK=1\nWORLD_SIZE=2\nMASTER_ADDR=a\n", { "port", "MASTER_PORT" } },
        { plain_shell, "RANK=1\nWORLD_SIZE=2\nMASTER_ADDR=a\nMASTER_PORT=70000\n", { "MASTER_PORT=\"70000\"", "65535" } },
        { torchrun, "LOCAL_RANK=2\n", { "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2" } },
        { plain_shell, "TREK_JOIN=new\nTREK_PORT=29500\n", { "TREK_JOIN=\"new\"", "without TREK_ADDRESS" } },
        { plain_shell, "TREK_JOIN=new\nTREK_ADDRESS=one\n", { "TREK_JOIN=\"new\"", "without TREK_PORT" } },
        { trek_run, "TREK_PORT=x\n", { "TREK_PORT=\"x\"", "whole number" } },
        { trek_run, torchrun, { "contradicts itself: TREK_RANK=2, TREK_WORLD_SIZE=4 (trek-run)", NULL } }, /* changed below */
        { open_mpi, "RANK=0\nWORLD_SIZE=2\nMASTER_PORT=1\n", { "RANK=0, WORLD_SIZE=2 (torchrun)", "OMPI_COMM_WORLD_RANK=1" } },
        { slurm, "RANK=0\nWORLD_SIZE=4\nMASTER_PORT=1\n", { "RANK=0, WORLD_SIZE=4", "SLURM_PROCID=3" } },
        { trek_run, "TREK_LOCAL_WORLD_SIZE=\nRANK=2\nWORLD_SIZE=4\nLOCAL_WORLD_SIZE=1\n",
          { "TREK_LOCAL_RANK=2", "LOCAL_WORLD_SIZE=1" } },
        { slurm, "SLURM_STEP_NODELIST=gpu[\n", { "SLURM_STEP_NODELIST=\"gpu[\"", "must be a list of hosts" } },
        { open_mpi_two, "OMPI_MCA_orte_hnp_uri=\n", { "on which machine", "MASTER_ADDR" } },
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        char all[4096];
        trek_launch launch;
        snprintf(all, sizeof all, "%s%s", rows[k].environment, rows[k].more);
        if (!rows[k].named[1])
            strcat(all, "RANK=3\n");
        use_environment(all);
        if (trek_launch_find(NULL, &launch) != TREK_ERR_ARGUMENT)
            fail_msg("row %zu was taken: process %d of %d", k, launch.process, launch.processes);
        for (int i = 0; i < 2 && rows[k].named[i]; i++)
            if (!strstr(trek_error(), rows[k].named[i]))
                fail_msg("row %zu: %s does not name %s", k, trek_error(), rows[k].named[i]);
        trek_error_clear();
        assert_int_equal(trek_comm_world_described(NULL), -1);
        assert_null(trek_comm_init(NULL));
        trek_error_clear();
    }
}

static void test_options(void **state)
{
    trek_launch launch;
    use_environment(torchrun);
    trek_launch_opts opts = { .rank = 1, .world_size = 3, .address = "::1", .port = 7000, .token = "t" };
    assert_int_equal(trek_launch_find(&opts, &launch), TREK_OK); /* they have the first word */
    assert_string_equal(launch.source, "options");
    assert_int_equal(launch.process, 1);
    assert_int_equal(launch.processes, 3);
    assert_string_equal(launch.address, "::1");
    assert_int_equal(launch.port, 7000);
    assert_string_equal(launch.token, "t");
    opts = (trek_launch_opts){ .port = 7001 }; /* the world from the environment, the port not */
    assert_int_equal(trek_launch_find(&opts, &launch), TREK_OK);
    assert_int_equal(launch.processes, 4);
    assert_int_equal(launch.port, 7001);
    static const trek_launch_opts bad[] = { { .rank = 3, .world_size = 3, .port = 1 }, { .rank = -1, .world_size = 3, .port = 1 },
                                          { .rank = 1, .port = 1 }, { .world_size = -2 }, { .world_size = 2, .port = 65536 },
                                          { .world_size = 5000, .port = 1 } };
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        assert_int_equal(trek_launch_find(&bad[k], &launch), TREK_ERR_ARGUMENT);
        trek_error_clear();
    }
    assert_null(trek_comm_init(&(trek_comm_opts){ .world_size = 1, .engine = "carrier pigeon" }));
    assert_int_equal(trek_error_status(), TREK_ERR_ARGUMENT);
    trek_error_clear();
    assert_null(trek_comm_init(&(trek_comm_opts){ .world_size = 1, .deadline_s = -3 }));
    assert_int_equal(trek_error_status(), TREK_ERR_ARGUMENT);
    trek_error_clear();
}

static void test_host_lists(void **state)
{
    static const struct { const char *list, *first; } rows[] = {
        { "node1", "node1" }, { "node1,node2", "node1" }, { "node[1-3]", "node1" }, { "node[007-009,12]", "node007" },
        { "node[3,5-7],x", "node3" }, { "r[1-2]n[3-4]-ib", "r1n3-ib" }, { "a.b.c", "a.b.c" },
        { "", NULL }, { "node[", NULL }, { "node[]", NULL }, { ",x", NULL }, { "a-name-that-is-longer-than-it-may-be", NULL },
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        char host[24];
        bool found = trek_launch_first_host(rows[k].list, host, sizeof host);
        assert_int_equal(found, rows[k].first != NULL);
        if (found)
            assert_string_equal(host, rows[k].first);
    }
}

static void test_world_of_one(void **state)
{
    use_environment(plain_shell);
    trek_comm *comm = trek_comm_init(NULL), *again = trek_comm_init(NULL);
    assert_non_null(comm);
    assert_ptr_equal(comm, again);
    assert_int_equal(trek_comm_world_size(comm), 1);
    assert_null(trek_comm_init(&(trek_comm_opts){ .world_size = 2, .port = 1 })); /* another world */
    assert_int_equal(trek_error_status(), TREK_ERR_ARGUMENT);
    trek_error_clear();
    trek_comm_free(&comm);
    assert_null(comm);
    trek_comm_say(again, "save");
    assert_int_equal(trek_comm_barrier(again), TREK_OK);
    trek_comm_free(&again);
    trek_comm_say(NULL, "save");
    comm = trek_comm_init(NULL); /* and anew */
    assert_int_equal(trek_comm_barrier(comm), TREK_OK);
    trek_comm_free(&comm);
}

static void test_stop_flags(void **state)
{
    int processes = trek_job_here.processes;
    assert_false(trek_stop_requested());
    trek_request_stop();
    assert_true(trek_stop_requested());
    trek_job_here.processes = 3; /* in a job it takes the others */
    assert_false(trek_stop_requested());
    assert_true(trek_stop_wanted());
    trek_stop_agree();
    assert_true(trek_stop_requested());
    trek_stop_clear();
    assert_false(trek_stop_wanted() || trek_stop_requested());
    trek_job_here.processes = processes;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launchers),  cmocka_unit_test(test_names_of_jobs), cmocka_unit_test(test_port_of_a_job),
            cmocka_unit_test(test_secrets), cmocka_unit_test(test_contradictions),
        cmocka_unit_test(test_options),    cmocka_unit_test(test_host_lists),    cmocka_unit_test(test_world_of_one),
        cmocka_unit_test(test_stop_flags),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
