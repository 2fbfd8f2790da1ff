/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts of trek-run, as a list or as a file, and the places of ranks on them. The first byte says which, the second how many
 * ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tools/run_hosts.h"

static bool read_list(hosts *h, const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    if (!text)
        return false;
    memcpy(text, data, size);
    text[size] = '\0';
    bool good = hosts_read_list(h, "--hosts", text);
    free(text);
    return good;
}

static void check_places(const hosts *h, int asked, int all)
{
    int next = 0;
    for (int k = 0; k < h->n; k++) {
        const host *own = &h->list[k];
        fuzz_expect(own->first == next && own->processes > 0, "ranks follow each other");
        fuzz_expect(own->slots == 0 || own->processes <= own->slots, "no more than there are places");
        fuzz_expect(own->name[0] != '-' && !strpbrk(own->name, " '\"$`;&|<>()\\\n"), "a name that no shell takes for more");
        fuzz_expect(host_address(own)[0] != '\0', "an address");
        next += own->processes;
    }
    fuzz_expect(next == all && all <= MOST && (asked == 0 || asked == all), "all ranks have a place");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static FILE *nowhere;
    hosts h = { 0 };
    if (size < 2)
        return 0;
    if (!nowhere && (nowhere = fopen("/dev/null", "w")))
        stderr = nowhere; /* what is wrong is said there */
    bool good = data[0] & 1 ? read_list(&h, data + 2, size - 2) : hosts_read_file(&h, fuzz_file(data + 2, size - 2));
    int all = good ? hosts_place(&h, data[1]) : 0;
    if (all > 0)
        check_places(&h, data[1], all);
    for (int k = 0; k < h.n; k++)
        free(h.list[k].name);
    free(h.list);
    return 0;
}
