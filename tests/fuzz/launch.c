/* SPDX-License-Identifier: Apache-2.0 */
/* Environments of launchers: lines NAME=value, of names that mean something. */
#include <stdlib.h>
#include <string.h>

#include "distributed/control/launch.h"
#include "tests/fuzz/fuzz.h"

static const char *const names[] = {
    "TREK_RANK", "TREK_WORLD_SIZE", "TREK_LOCAL_RANK", "TREK_LOCAL_WORLD_SIZE", "TREK_ADDRESS", "TREK_PORT", "TREK_TOKEN",
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_ID", "SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES",
};
enum { NAMES = sizeof names / sizeof *names };

/* A line of the input: its name must be one of those, or a letter that stands for one. */
static void set_line(const char *line, size_t length)
{
    char text[700];
    const char *equals = memchr(line, '=', length);
    if (!equals || length >= sizeof text)
        return;
    memcpy(text, line, length);
    text[length] = text[equals - line] = '\0';
    for (int k = 0; k < NAMES; k++)
        if (strcmp(text, names[k]) == 0 || (equals - line == 1 && (unsigned char)text[0] % NAMES == k))
            setenv(names[k], text + (equals - line) + 1, 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    trek_launch launch;
    for (int k = 0; k < NAMES; k++)
        unsetenv(names[k]);
    for (size_t at = 0; at < size;) {
        const uint8_t *end = memchr(data + at, '\n', size - at);
        size_t length = end ? (size_t)(end - data) - at : size - at;
        set_line((const char *)data + at, length);
        at += length + 1;
    }
    trek_status status = trek_launch_find(NULL, &launch);
    fuzz_settle(status == TREK_OK);
    if (status == TREK_OK) {
        fuzz_expect(launch.processes >= 1 && launch.process >= 0 && launch.process < launch.processes, "a process of a world");
        fuzz_expect(launch.port >= 0 && launch.port <= 65535 && (launch.processes == 1 || launch.port > 0), "a port");
        fuzz_expect(launch.address[0] && memchr(launch.address, 0, sizeof launch.address), "an address");
        fuzz_expect(memchr(launch.token, 0, sizeof launch.token) && memchr(launch.source, 0, sizeof launch.source),
                    "texts that end");
        fuzz_expect(launch.locals < 0 || launch.local < launch.locals, "a local process of its machine");
    }
    return 0;
}
