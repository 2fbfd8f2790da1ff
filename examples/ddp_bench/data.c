/* SPDX-License-Identifier: Apache-2.0 */
/* The workloads' data: files if they exist, otherwise generated data, so that the program runs on every machine. Generated data
 * have the shapes of the real ones and can be learnt. */
#include <stdio.h>
#include <stdlib.h>

#include "../digits.h"
#include "workload.h"

enum { MADE_TRAIN = 4000, MADE_TEST = 1000, SIDE = 32, DIGIT = 28, CHANNELS = 3 };

static bool there(const char *folder, const char *name, char *path, size_t size)
{
    int length = snprintf(path, size, "%s/%s", folder, name);
    FILE *file = length > 0 && (size_t)length < size ? fopen(path, "rb") : NULL;
    if (file)
        fclose(file);
    return file != NULL;
}

/* The first `limit` samples; takes the set over. */
static trek_dataset *at_most(trek_dataset *set, int64_t limit)
{
    return set && limit > 0 && limit < trek_dataset_length(set) ? trek_dataset_subset(set, 0, limit) : set;
}

/* Cuts one set in two; takes it over. */
static workload_data split(trek_dataset *set, double part, const char *source)
{
    int64_t n = set ? trek_dataset_length(set) : 0, train = (int64_t)((double)n * part);
    if (!set)
        return (workload_data){ .source = source };
    trek_dataset *same = trek_dataset_retain(set);
    return (workload_data){ trek_dataset_subset(set, 0, train), trek_dataset_subset(same, train, n - train), source };
}

/* --- MNIST ---------------------------------------------------------------------------- */

static workload_data open_mnist(const char *folder, int64_t train, int64_t test)
{
    char place[4096];
    int length = snprintf(place, sizeof place, "%s/mnist", folder ? folder : "");
    bool real = folder && length < (int)sizeof place && digits_are_in(place);
    digits d = digits_open(real ? place : NULL, train, test);
    return (workload_data){ d.train, d.test, d.source };
}

/* --- CIFAR-10 -------------------------------------------------------------------------- */

/* Number k of a stream, uniform in [0, 1). */
static double uniform(uint32_t stream, uint32_t k)
{
    uint32_t h = stream * 0x9e3779b9u ^ (k + 0x7f4a7c15u) * 0x85ebca6bu;
    h ^= h >> 16, h *= 0x7feb352du, h ^= h >> 15, h *= 0x846ca68bu, h ^= h >> 16;
    return (double)(h >> 8) * 0x1p-24;
}

/* One drawn digit in a colour of its own on a ground of another, somewhere in 32 x 32. */
static void colour(const float *digit, uint32_t stream, float *image)
{
    int top = (int)(uniform(stream, 0) * 5), left = (int)(uniform(stream, 1) * 5);
    for (uint32_t c = 0; c < CHANNELS; c++) {
        double ground = 0.5 * uniform(stream, 2 + c), ink = 0.5 + 0.5 * uniform(stream, 5 + c);
        for (int y = 0; y < SIDE; y++)
            for (int x = 0; x < SIDE; x++) {
                bool inside = y >= top && y < top + DIGIT && x >= left && x < left + DIGIT;
                double shade = inside ? (double)digit[(y - top) * DIGIT + x - left] : 0;
                *image++ = (float)(ground + (ink - ground) * shade);
            }
    }
}

static trek_dataset *coloured_digits(int64_t n, uint64_t seed)
{
    trek_dataset *digits = trek_dataset_digits(n, seed), *set = NULL;
    trek_tensor *images = trek_tensor_empty(trek_dims(n, CHANNELS, SIDE, SIDE), TREK_F32, trek_cpu(0));
    int64_t *all = malloc((size_t)n * sizeof *all);
    trek_tensor *fields[2] = { NULL };
    for (int64_t i = 0; all && i < n; i++)
        all[i] = i;
    if (digits && images && all && trek_dataset_get(digits, all, n, fields) == TREK_OK) {
        const float *from = trek_tensor_data(fields[0]);
        float *to = trek_tensor_data(images);
        for (int64_t i = 0; i < n; i++)
            colour(from + i * DIGIT * DIGIT, (uint32_t)(1000 * seed) + (uint32_t)i, to + i * CHANNELS * SIDE * SIDE);
        set = trek_dataset_tensors((const char *const[]){ "image", "label" }, (trek_tensor *[]){ images, fields[1] }, 2);
    }
    trek_tensor_release(fields[0]);
    trek_tensor_release(fields[1]);
    trek_tensor_release(images);
    trek_dataset_free(&digits);
    free(all);
    return set;
}

static workload_data open_cifar(const char *folder, int64_t train, int64_t test)
{
    static const char *const names[] = { "cifar-10", "cifar-10-batches-bin", "cifar10" };
    char path[4096], place[4096];
    for (int k = 0; folder && k < 3; k++) {
        snprintf(place, sizeof place, "%s/%s", folder, names[k]);
        if (there(place, "data_batch_1.bin", path, sizeof path))
            return (workload_data){ trek_dataset_cifar10(place, TREK_DATA_SPLIT_TRAIN),
                                    trek_dataset_cifar10(place, TREK_DATA_SPLIT_TEST), "CIFAR-10" };
    }
    return (workload_data){ coloured_digits(train, 1), coloured_digits(test, 2), "coloured drawn digits" };
}

/* --- text -------------------------------------------------------------------------------- */

/* Characters that mostly follow from the two before them: a model that sees them comes to about 0.6 nats. */
static trek_dataset *made_text(int64_t n, uint32_t stream)
{
    trek_tensor *input = trek_tensor_empty(trek_dims(n, CONTEXT), TREK_I64, trek_cpu(0));
    trek_tensor *target = trek_tensor_empty(trek_dims(n, CONTEXT), TREK_I64, trek_cpu(0));
    trek_dataset *set = NULL;
    if (input && target) {
        int64_t *from = trek_tensor_data(input), *to = trek_tensor_data(target), before = 0, last = 1;
        for (int64_t i = 0; i < n * CONTEXT; i++) {
            bool free_choice = uniform(stream, (uint32_t)i) < 0.1;
            int64_t next = free_choice ? (int64_t)(uniform(stream + 1, (uint32_t)i) * CHARACTERS) :
                           (3 * last + before + 7) % CHARACTERS;
            from[i] = last;
            to[i] = next;
            before = last, last = next;
        }
        set = trek_dataset_tensors((const char *const[]){ "input", "target" }, (trek_tensor *[]){ input, target }, 2);
    }
    trek_tensor_release(input);
    trek_tensor_release(target);
    return set;
}

static workload_data open_text(const char *folder, int64_t train, int64_t test)
{
    char path[4096];
    if (folder && there(folder, "tinyshakespeare/input.txt", path, sizeof path))
        return split(trek_dataset_text_windows(path, CONTEXT, NULL), 0.9, "tinyshakespeare");
    return (workload_data){ made_text(train, 1), made_text(test, 3), "characters that follow from two" };
}

workload_data workload_open(data_kind kind, const char *folder, int64_t limit)
{
    int64_t train = limit > 0 ? limit : MADE_TRAIN, test = limit > 0 ? (limit + 3) / 4 : MADE_TEST;
    workload_data data = kind == DATA_MNIST ? open_mnist(folder, train, test) :
                         kind == DATA_CIFAR ? open_cifar(folder, train, test) : open_text(folder, train, test);
    data.train = at_most(data.train, limit);
    data.test = at_most(data.test, limit > 0 ? test : 0);
    if (!data.train || !data.test) {
        trek_dataset_free(&data.train);
        trek_dataset_free(&data.test);
    }
    return data;
}
