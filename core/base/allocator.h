// What the C library's allocator keeps of memory that was freed. Without glibc these do nothing.
//
// Thread contract: any thread.
#pragma once

namespace moesaic {

// Threads share two arenas, where glibc would make up to eight for each core: what one thread has
// freed is used by others, and can be given back. For processes in which engines come and go.
// MALLOC_ARENA_MAX in the environment wins.
void UseFewArenas();

// Gives freed pages back to the system: of an engine that is gone, whose memory is promised to
// others.
void ReturnFreedMemory();

}  // namespace moesaic
