// CHECK(condition): prints where and what failed and ends the test program with status 1.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(...)                                                                  \
  do {                                                                              \
    if (!(__VA_ARGS__)) {                                                           \
      std::fprintf(stderr, "%s:%d: CHECK(%s)\n", __FILE__, __LINE__, #__VA_ARGS__); \
      std::exit(1);                                                                 \
    }                                                                               \
  } while (false)
