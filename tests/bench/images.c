/* SPDX-License-Identifier: Apache-2.0 */
/* Images per second of a folder of JPEGs, for images.py: decoded, cut and resized, flipped, jittered, normalised, in batches.
 *   trek-bench-images FOLDER BATCH SECONDS WORKERS */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "data/image.h"
#include "data/loader.h"
#include "data/transform.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static trek_dataset *images(const char *folder)
{
    const double mean[] = { 0.485, 0.456, 0.406 }, std[] = { 0.229, 0.224, 0.225 };
    trek_transform *chain[] = {
        trek_transform_random_resized_crop(224, 224, NULL),
        trek_transform_random_horizontal_flip(0.5),
        trek_transform_color_jitter(&(trek_color_jitter_opts){ 0.4, 0.4, 0.4, 0.1 }),
        trek_transform_normalize(mean, std, 3),
    };
    return trek_dataset_transform(trek_dataset_image_folder(folder, NULL), "image", trek_transform_chain(chain, 4), 0);
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    trek_loader_opts opts = { .batch_size = atoi(argv[2]), .shuffle = true, .workers = atoi(argv[4]), .device = trek_cpu(0) };
    trek_loader *loader = trek_loader_new(images(argv[1]), &opts);
    double start = now(), until = start + atof(argv[3]);
    long done = 0;
    for (int64_t epoch = 0; loader && now() < until && trek_loader_start(loader, epoch) == TREK_OK; epoch++)
        for (trek_batch *batch; (batch = trek_loader_next(loader));)
            done += trek_batch_size(batch);
    printf("%.1f\n", (double)done / (now() - start));
    if (trek_error_status() != TREK_OK)
        fprintf(stderr, "%s\n", trek_error());
    trek_loader_free(&loader);
    return trek_error_status() != TREK_OK;
}
