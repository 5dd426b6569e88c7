#define REKINDLE_FINGERPRINT FingerprintBaseline
#include "dedup_store/hashing_kernel.inc"
