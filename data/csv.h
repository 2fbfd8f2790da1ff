/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of text, with values between commas (RFC 4180). */
#ifndef TREK_DATA_CSV_H
#define TREK_DATA_CSV_H

#include "data/dataset.h"

TREK_BEGIN

/* A field of the dataset, made of one column or several. */
typedef struct trek_csv_field {
    const char *name;              /* of the field; NULL: the first column's */
    const char *const *columns;    /* by name; without one by number, "0", "1", ...; NULL: the one called `name` */
    int n_columns;
    trek_dtype dtype; /* default f32. Integers, u8 and bool take whole numbers in their range; bool 0 and 1, true and false */
    bool category;                 /* words, one of a set: i64, the word's place among `words` */
    const char *const *words;      /* NULL: those that occur, sorted by bytes */
    int n_words;
    bool fill;                     /* a missing value is `missing` (of a category: only with words); else NaN in floats, -1 in
                                      categories, and FORMAT in integers */
    double missing;
} trek_csv_field;

typedef struct trek_csv_opts {
    const trek_csv_field *fields;  /* NULL: a field for each column: i64 if all its values are whole numbers, f32 if they are
                                      numbers (or some are missing), else a category */
    int n_fields;
    char delimiter;                /* default ',' */
    bool no_header;                /* the first row holds values; columns are called "0", "1", ... */
    const char *missing;           /* a word that stands for a missing value, beside nothing at all; default "NA" */
} trek_csv_opts;

/* Rows of a file, plain or gzip'd, as samples: field [n] of one column, [n, columns] of several. It is read in pieces, only
 * what fields need is kept, in memory. Values may stand in quotes, with "" for one; rows end with LF or CRLF, empty ones are
 * left out, as is a byte order mark. Numbers have a point, whatever the locale; "nan" and "inf" are numbers. opts may be NULL.
 * NULL and IO; FORMAT, with the path and the line: a row with more or fewer values than the first, what is no number (of the
 * type), a word that is none of `words`, a quote that does not end; ARGUMENT: a column that is not there, listing those that
 * are; MEMORY. */
TREK_API trek_dataset *trek_dataset_csv(const char *path, const trek_csv_opts *opts);
/* The words of a category field (or of a subset's), *n of them; they live as long as the dataset. NULL and ARGUMENT for
 * another field or dataset. */
TREK_API const char *const *trek_csv_words(const trek_dataset *dataset, const char *field, int *n);

TREK_END

#endif
