/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/run_secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static bool make(char *token, size_t size)
{
    unsigned char bytes[32];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes || size < 2 * sizeof bytes + 1) {
        fprintf(stderr, "trek-run: no random numbers: %s\n", strerror(errno));
        return false;
    }
    for (size_t k = 0; k < sizeof bytes; k++)
        snprintf(token + 2 * k, 3, "%02x", bytes[k]);
    return true;
}

/* Reads the first line of a file that no other user may read, as processes do. */
static bool read_first_line(const char *path, char *token, size_t size)
{
    struct stat about;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) {
        fprintf(stderr, "trek-run: TREK_TOKEN_FILE: %s: %s\n", path, strerror(errno));
        return false;
    }
    bool own = fstat(file, &about) == 0 && S_ISREG(about.st_mode) && !(about.st_mode & 077) &&
               (about.st_uid == geteuid() || about.st_uid == 0);
    ssize_t length = own ? read(file, token, size - 1) : 0;
    close(file);
    token[length > 0 ? length : 0] = '\0';
    bool fits = (size_t)length < size - 1 || strpbrk(token, "\r\n");
    token[strcspn(token, "\r\n")] = '\0';
    if (own && *token && fits)
        return true;
    fprintf(stderr, "trek-run: TREK_TOKEN_FILE: %s: %s\n", path,
            own ? "the first line must be the job's secret" : "must be a file of this user, of mode 0600");
    return false;
}

bool secret_find(bool joins, char *token, size_t size)
{
    bool in_job = getenv("TREK_RANK") || getenv("TREK_JOIN");
    const char *given = joins || !in_job ? getenv("TREK_TOKEN") : NULL, *file = joins ||
        !in_job ? getenv("TREK_TOKEN_FILE") : NULL;
    if (given && *given) {
        if (strlen(given) < size)
            return strcpy(token, given) != NULL;
        fprintf(stderr, "trek-run: TREK_TOKEN: %zu bytes; must be at most %zu\n", strlen(given), size - 1);
        return false;
    }
    if (file && *file)
        return read_first_line(file, token, size);
    if (!joins)
        return make(token, size);
    fprintf(stderr, "trek-run: --join: the job's secret is missing; set TREK_TOKEN or TREK_TOKEN_FILE, as where the job was "
                    "started\n");
    return false;
}
