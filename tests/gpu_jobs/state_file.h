// The file by which a test job tells how far it is: one line, "STEP DIGEST" and perhaps a word more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace rekindle::gpu_jobs {

// In place, never by renaming another file to it: an image taken while that one is open could not come back
// once it is gone. Readers that take it in one read see the old or the new contents. Ends the process if it
// cannot be written.
void WriteFile(const std::string& path, const void* bytes, size_t count);
void WriteState(const std::string& path, uint64_t step, uint64_t digest, const char* more);
// False while there is none.
bool ReadState(const std::string& path, uint64_t* step, uint64_t* digest);

void Pause(uint64_t milliseconds);
[[noreturn]] __attribute__((format(printf, 1, 2))) void Die(const char* format, ...);

}  // namespace rekindle::gpu_jobs
