/* SPDX-License-Identifier: Apache-2.0 */
/* Drawn digits: strokes along control points that are jittered and bent, a random affine map, a pen of random width,
 * stray marks and noise. Every sample is computed on request from (seed, index) alone. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "data/dataset_internal.h"
#include "tensor/random_internal.h"

#define SIDE 28
#define PIXELS (SIDE * SIDE)
#define MOST_POINTS 10
#define MOST_STROKES 3
#define SPAN_STEPS 5 /* straight pieces between two points of a curve */

typedef struct point {
    float x, y;
} point;

typedef struct stroke {
    int n;       /* number of points; 0 for no stroke */
    bool smooth; /* a curve through the points instead of straight pieces */
    point points[MOST_POINTS];
} stroke;

typedef struct glyph {
    int digit;
    stroke strokes[MOST_STROKES];
} glyph;

/* In a unit square with y downward. Several digits have two shapes. */
static const glyph glyphs[] = {
    { 0, { { 9, true, { { .5f, .04f }, { .27f, .17f }, { .2f, .5f }, { .28f, .84f }, { .5f, .96f }, { .73f, .83f }, { .8f, .5f },
                        { .72f, .17f }, { .5f, .04f } } } } },
    { 1, { { 2, false, { { .52f, .04f }, { .48f, .96f } } } } },
    { 1, { { 3, false, { { .3f, .26f }, { .54f, .05f }, { .52f, .95f } } } } },
    { 2, { { 6, true, { { .2f, .26f }, { .36f, .07f }, { .63f, .07f }, { .76f, .28f }, { .58f, .56f }, { .2f, .93f } } },
           { 2, false, { { .2f, .93f }, { .82f, .92f } } } } },
    { 2, { { 9, true, { { .22f, .22f }, { .45f, .04f }, { .74f, .22f }, { .6f, .58f }, { .3f, .9f }, { .2f, .82f },
                        { .34f, .76f },
                        { .6f, .92f }, { .84f, .86f } } } } },
    { 3, { { 5, true, { { .22f, .15f }, { .5f, .04f }, { .74f, .2f }, { .66f, .4f }, { .42f, .47f } } },
           { 5, true, { { .42f, .47f }, { .74f, .56f }, { .78f, .78f }, { .52f, .95f }, { .2f, .84f } } } } },
    { 3, { { 3, false, { { .22f, .07f }, { .76f, .07f }, { .46f, .4f } } },
           { 5, true, { { .46f, .4f }, { .76f, .52f }, { .78f, .76f }, { .54f, .95f }, { .2f, .85f } } } } },
    { 4, { { 3, false, { { .6f, .04f }, { .18f, .63f }, { .86f, .63f } } }, { 2, false, { { .64f, .3f }, { .62f, .97f } } } } },
    { 4, { { 3, false, { { .26f, .06f }, { .2f, .52f }, { .8f, .5f } } }, { 2, false, { { .74f, .05f }, { .7f, .96f } } } } },
    { 5, { { 3, false, { { .77f, .07f }, { .3f, .07f }, { .26f, .46f } } },
           { 5, true, { { .26f, .46f }, { .58f, .38f }, { .8f, .64f }, { .58f, .94f }, { .2f, .86f } } } } },
    { 6, { { 8, true, { { .68f, .05f }, { .38f, .28f }, { .22f, .66f }, { .44f, .95f }, { .75f, .8f }, { .68f, .55f },
                        { .44f, .52f },
                        { .25f, .7f } } } } },
    { 7, { { 3, false, { { .18f, .08f }, { .8f, .08f }, { .42f, .95f } } } } },
    { 7, { { 3, false, { { .18f, .09f }, { .8f, .06f }, { .44f, .95f } } }, { 2, false, { { .34f, .5f }, { .74f, .48f } } } } },
    { 8, { { 9, true, { { .5f, .48f }, { .27f, .26f }, { .5f, .05f }, { .73f, .26f }, { .5f, .48f }, { .22f, .73f },
                        { .5f, .96f },
                        { .78f, .73f }, { .5f, .48f } } } } },
    { 9, { { 8, true, { { .74f, .3f }, { .54f, .5f }, { .28f, .4f }, { .3f, .14f }, { .56f, .05f }, { .75f, .26f }, { .73f, .6f },
                        { .58f, .96f } } } } },
    { 9, { { 6, true, { { .72f, .26f }, { .5f, .5f }, { .26f, .28f }, { .5f, .05f }, { .73f, .22f }, { .72f, .34f } } },
           { 2, false, { { .73f, .3f }, { .7f, .96f } } } } },
};
#define GLYPHS (int)(sizeof(glyphs) / sizeof(glyphs[0]))

/* -- random numbers of one sample ------------------------------------------- */

typedef struct stream {
    uint64_t seed, index;
    uint32_t block, words[4];
    int left;
} stream;

static uint32_t next_word(stream *s)
{
    if (s->left == 0) {
        trek_philox(s->seed, s->index, s->block++, 0x64696769u, s->words);
        s->left = 4;
    }
    return s->words[--s->left];
}

static float uniform(stream *s, float low, float high) { return low + (high - low) * trek_uniform_f32(next_word(s)); }

/* Approximately normal with mean 0 and variance 1: the scaled sum of a word's four bytes. */
static float bell(stream *s)
{
    uint32_t w = next_word(s);
    float sum = (float)((w & 255) + (w >> 8 & 255) + (w >> 16 & 255) + (w >> 24));
    return (sum - 510.0f) * (1.0f / 147.8f);
}

/* -- drawing ------------------------------------------------------------------ */

typedef struct pen {
    float width, ink; /* width in pixels; ink from 0 to 1 */
} pen;

/* Returns the distance of p from the segment a-b. */
static float distance(point p, point a, point b)
{
    float dx = b.x - a.x, dy = b.y - a.y, length = dx * dx + dy * dy;
    float t = length > 0 ? ((p.x - a.x) * dx + (p.y - a.y) * dy) / length : 0;
    t = t < 0 ? 0 : t > 1 ? 1 : t;
    float ex = p.x - a.x - t * dx, ey = p.y - a.y - t * dy;
    return sqrtf(ex * ex + ey * ey);
}

static int pixel_at_least(float x) { return x <= 0 ? 0 : x >= SIDE ? SIDE : (int)x; }

static void draw_piece(float *image, pen pen, point a, point b)
{
    float reach = pen.width * 0.5f + 1.0f;
    int left = pixel_at_least(fminf(a.x, b.x) - reach), right = pixel_at_least(fmaxf(a.x, b.x) + reach + 1);
    int top = pixel_at_least(fminf(a.y, b.y) - reach), bottom = pixel_at_least(fmaxf(a.y, b.y) + reach + 1);
    for (int y = top; y < bottom; y++)
        for (int x = left; x < right; x++) {
            float cover = pen.width * 0.5f + 0.5f - distance((point){ (float)x + 0.5f, (float)y + 0.5f }, a, b);
            cover = (cover < 0 ? 0 : cover > 1 ? 1 : cover) * pen.ink;
            float *pixel = &image[y * SIDE + x];
            *pixel = *pixel > cover ? *pixel : cover;
        }
}

/* Catmull-Rom: the curve that passes b at t = 0 and c at t = 1. */
static point between(point a, point b, point c, point d, float t)
{
    float t2 = t * t, t3 = t2 * t;
    float wa = -0.5f * t3 + t2 - 0.5f * t, wb = 1.5f * t3 - 2.5f * t2 + 1, wc = -1.5f * t3 + 2 * t2 + 0.5f * t,
        wd = 0.5f * (t3 - t2);
    return (point){ wa * a.x + wb * b.x + wc * c.x + wd * d.x, wa * a.y + wb * b.y + wc * c.y + wd * d.y };
}

static void draw_stroke(float *image, pen pen, const point *p, int n, bool smooth)
{
    for (int k = 0; k + 1 < n; k++) {
        if (!smooth) {
            draw_piece(image, pen, p[k], p[k + 1]);
            continue;
        }
        bool closed = p[0].x == p[n - 1].x && p[0].y == p[n - 1].y;
        point before = k > 0 ? p[k - 1] : closed ? p[n - 2] : p[k];
        point after = k + 2 < n ? p[k + 2] : closed ? p[1] : p[k + 1];
        point from = p[k];
        for (int step = 1; step <= SPAN_STEPS; step++) {
            point to = between(before, p[k], p[k + 1], after, (float)step / SPAN_STEPS);
            draw_piece(image, pen, from, to);
            from = to;
        }
    }
}

/* Maps the unit square into the image: rotated, slanted, stretched, moved and slightly bent. */
typedef struct map {
    float xx, xy, yx, yy, x0, y0;
    float bend, phase;
} map;

static map random_map(stream *s)
{
    float angle = uniform(s, -0.3f, 0.3f), slant = uniform(s, -0.35f, 0.35f);
    float width = uniform(s, 13, 21), height = uniform(s, 16, 23);
    float c = cosf(angle), n = sinf(angle);
    map m = { .xx = c * width, .xy = (-n - slant * c) * height, .yx = n * width, .yy = (c - slant * n) * height };
    m.x0 = 14 + uniform(s, -2.5f, 2.5f);
    m.y0 = 14 + uniform(s, -2.5f, 2.5f);
    m.bend = uniform(s, -0.06f, 0.06f);
    m.phase = uniform(s, 0, 6.2831853f);
    return m;
}

static point map_point(const map *m, point p)
{
    float x = p.x - 0.5f + m->bend * sinf(5 * p.y + m->phase), y = p.y - 0.5f + m->bend * cosf(5 * p.x + m->phase);
    return (point){ m->x0 + m->xx * x + m->xy * y, m->y0 + m->yx * x + m->yy * y };
}

/* Each control point moves on its own; points shared by strokes move together. */
static void jitter(stream *s, const glyph *from, float amount, glyph *to)
{
    *to = *from;
    for (int k = 0; k < MOST_STROKES; k++)
        for (int i = 0; i < from->strokes[k].n; i++) {
            point old = from->strokes[k].points[i], *new = &to->strokes[k].points[i];
            new->x += amount * bell(s);
            new->y += amount * bell(s);
            for (int j = 0; j <= k; j++)
                for (int h = 0; h < (j < k ? from->strokes[j].n : i); h++)
                    if (from->strokes[j].points[h].x == old.x && from->strokes[j].points[h].y == old.y)
                        *new = to->strokes[j].points[h];
        }
}

static void draw_mark(stream *s, float *image, float ink)
{
    point a = { uniform(s, 0, SIDE), uniform(s, 0, SIDE) };
    point b = { a.x + uniform(s, -8, 8), a.y + uniform(s, -8, 8) };
    draw_piece(image, (pen){ uniform(s, 0.6f, 1.6f), ink }, a, b);
}

static int draw_digit(uint64_t seed, int64_t index, float *image)
{
    stream s = { .seed = seed, .index = (uint64_t)index };
    int digit = (int)(next_word(&s) % 10), forms = 0, first = 0;
    for (int k = GLYPHS - 1; k >= 0; k--)
        if (glyphs[k].digit == digit) {
            forms++;
            first = k;
        }
    glyph drawn;
    jitter(&s, &glyphs[first + (int)(next_word(&s) % (uint32_t)forms)], 0.03f, &drawn);
    map m = random_map(&s);
    pen pen = { uniform(&s, 1.2f, 3.4f), uniform(&s, 0.7f, 1) };
    memset(image, 0, PIXELS * sizeof(*image));
    for (int k = 0; k < MOST_STROKES; k++) {
        stroke *stroke = &drawn.strokes[k];
        for (int i = 0; i < stroke->n; i++)
            stroke->points[i] = map_point(&m, stroke->points[i]);
        draw_stroke(image, pen, stroke->points, stroke->n, stroke->smooth);
    }
    for (int marks = (int)(next_word(&s) % 3); marks > 0; marks--)
        draw_mark(&s, image, uniform(&s, 0.2f, 0.6f));
    float noise = uniform(&s, 0.02f, 0.15f);
    for (int i = 0; i < PIXELS; i++) {
        float value = image[i] + noise * bell(&s);
        image[i] = value < 0 ? 0 : value > 1 ? 1 : value;
    }
    return digit;
}

/* -- the dataset --------------------------------------------------------------- */

typedef struct digits {
    trek_dataset base;
    int64_t length;
    uint64_t seed;
} digits;

static int64_t digits_length(const trek_dataset *self) { return ((const digits *)self)->length; }

static trek_status digits_get(trek_dataset *self, const trek_fetch *fetch, trek_tensor **out)
{
    out[0] = trek_dataset_tensor(fetch->n, trek_dims(1, SIDE, SIDE), TREK_F32);
    out[1] = trek_dataset_tensor(fetch->n, trek_dims_none(), TREK_I64);
    if (!out[0] || !out[1])
        return trek_status_or(TREK_ERR_MEMORY);
    float *images = trek_tensor_data(out[0]);
    int64_t *labels = trek_tensor_data(out[1]);
    for (int64_t i = 0; i < fetch->n; i++)
        labels[i] = draw_digit(((digits *)self)->seed, fetch->indices[i], images + i * PIXELS);
    return TREK_OK;
}

static const trek_dataset_class digits_class = {
    .name = "digits", .size = sizeof(digits), .length = digits_length, .get = digits_get,
    .n_fields = 2, .fields = trek_image_fields,
};

trek_dataset *trek_dataset_digits(int64_t n, uint64_t seed)
{
    if (n < 0)
        return trek_fail_null(TREK_ERR_ARGUMENT, "dataset_digits: n: %" PRId64 " samples; must be at least 1", n);
    digits *set = (digits *)trek_dataset_new(&digits_class);
    if (!set)
        return NULL;
    set->length = n;
    set->seed = seed;
    return &set->base;
}
