// The file by which a test job tells how far it is: one line, "STEP DIGEST" and perhaps a word more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace rekindle::gpu_jobs {

// Readers see the old or the new contents, never half of one. Ends the process if it cannot be written.
void WriteFile(const std::string& path, const void* bytes, size_t count);
void WriteState(const std::string& path, uint64_t step, uint64_t digest, const char* more);
// False while there is none.
bool ReadState(const std::string& path, uint64_t* step, uint64_t* digest);

void Pause(uint64_t milliseconds);
[[noreturn]] __attribute__((format(printf, 1, 2))) void Die(const char* format, ...);

}  // namespace rekindle::gpu_jobs
